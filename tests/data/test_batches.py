"""Promises about batches: whatever they are made of, they are moved, cut, or refused with a
reason."""

import collections
import dataclasses
import types
from typing import NamedTuple

import numpy
import pytest
import torch
from codes import raises
from data_helpers import same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from lockstep._base.errors import DataError
from lockstep._data.batches import count_samples, cut, map_tensors, pin, to_device

pytestmark = pytest.mark.timeout(30)
META = torch.device("meta")  # a device without a GPU


class Pair(NamedTuple):
    inputs: torch.Tensor
    names: list


@dataclasses.dataclass(frozen=True)
class Graph:
    nodes: torch.Tensor
    kind: str = "graph"
    derived: int = dataclasses.field(init=False, default=3)


class Encoding(collections.UserDict):
    """As the batch of a tokeniser: a mapping with attributes besides its items, and a ``to`` that
    changes itself."""

    def __init__(self, data=None, note=None):
        super().__init__(data)
        self.note = note

    def to(self, device):
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Awkward(dict):
    """A dict that is not made from a dict."""

    def __init__(self, *, first, second):
        super().__init__(first=first, second=second)


class Boxes:
    """An object with a length and a ``to``."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def to(self, device):
        return Boxes(self.tensor.to(device))

    def pin_memory(self):
        return "pinned by itself"


def rows(num=4, columns=2):
    return torch.arange(num * columns).reshape(num, columns)


KINDS = {
    "tensor": rows(),
    "tuple": (rows(), torch.arange(4)),
    "list": [rows(), torch.arange(4)],
    "dict": {"x": rows(), "y": torch.arange(4)},
    "ordered dict": collections.OrderedDict(x=rows(), y=torch.arange(4)),
    "default dict": collections.defaultdict(list, x=rows()),
    "read-only dict": types.MappingProxyType({"x": rows()}),
    "named tuple": Pair(rows(), list("abcd")),
    "dataclass": Graph(rows()),
    "array": numpy.arange(8).reshape(4, 2),
    "encoding": Encoding({"ids": rows(), "mask": rows() > 3}, note="kept"),
    "awkward dict": Awkward(first=rows(), second=torch.arange(4)),
    "nested": {"a": [(rows(), {"b": Graph(rows())})], "c": "text"},
    "empty containers": {"x": rows(), "nothing": [], "none": None, "no keys": {}},
}


@pytest.mark.parametrize("batch", KINDS.values(), ids=KINDS)
def test_a_batch_of_any_kind_is_counted_and_cut_and_keeps_its_kind(batch):
    assert count_samples(batch) == 4
    part = cut(batch, slice(1, 3), 4)
    assert count_samples(part) == 2
    if not isinstance(batch, types.MappingProxyType):
        assert type(part) is type(batch)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_what_is_cut_is_what_the_rows_were(num, one, other):
    start, stop = sorted((min(one, num), min(other, num)))
    texts = [f"text {i}" for i in range(num)]
    batch = {"x": rows(num), "y": rows(num).numpy(), "texts": texts, "numbers": list(range(num)), "size": (224,) * num}
    part = cut(batch, slice(start, stop), num)
    assert torch.equal(part["x"], batch["x"][start:stop])
    assert numpy.array_equal(part["y"], batch["y"][start:stop])
    assert part["texts"] == texts[start:stop]
    assert part["numbers"] == list(range(start, stop))
    assert part["size"] == (224,) * num  # an image's size, and no number a sample


def test_values_of_the_whole_batch_are_kept():
    batch = {"x": rows(), "scale": 2.0, "name": "wxyz", "raw": b"wxyz", "shape": [8, 8], "nothing": None}
    part = cut(batch, slice(0, 1), 4)
    assert {key: value for key, value in part.items() if key != "x"} == {k: v for k, v in batch.items() if k != "x"}


def test_a_named_tuple_of_plain_values_belongs_to_the_whole_batch():
    size = collections.namedtuple("Size", "height width")(3, 5)
    assert cut((rows(2), size), slice(0, 1), 2)[1] == size


def test_a_list_with_a_list_of_tokens_for_each_sample_is_cut_between_samples():
    batch = {"x": rows(3), "tokens": [[1, 2, 4, 5], [3], [6, 7]]}
    assert cut(batch, slice(0, 2), 3)["tokens"] == [[1, 2, 4, 5], [3]]


def test_columns_of_texts_are_cut_as_the_default_collate_makes_them():
    batch = [rows(3), [("a", "b", "c"), ("d", "e", "f")]]
    assert cut(batch, slice(1, 3), 3)[1] == [("b", "c"), ("e", "f")]


def test_a_list_that_could_be_read_either_way_is_refused():
    with raises(DataError, "batch-ambiguous-list"):
        cut({"x": rows(2), "tokens": [[1, 2], [3, 4]]}, slice(0, 1), 2)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ([], "batch of type list"),
        ({"x": rows(4), "y": rows(3)}, r"batch\['x'\].* 4 .*batch\['y'\].* 3"),
        ((rows(4), torch.tensor(1.0)), r"batch\[1\] is a single number"),
        (Graph(torch.tensor(1)), r"batch\.nodes is a single number"),
        ([(torch.rand(3, 2), torch.tensor(0)), (torch.rand(3, 2), torch.tensor(1))], "is a single number"),
    ],
)
def test_a_batch_that_cannot_be_cut_is_refused_with_its_place_and_reason(batch, reason):
    with pytest.raises(DataError, match=reason):
        count_samples(batch)


def test_an_object_that_may_hold_something_a_sample_is_refused():
    with raises(DataError, "batch-unknown-container"):
        cut((rows(4), Boxes(rows(4))), slice(0, 2), 4)


@pytest.mark.parametrize("batch", KINDS.values(), ids=KINDS)
def test_a_batch_of_any_kind_is_moved_as_a_copy_of_its_kind(batch):
    moved, devices = to_device(batch, META), set()
    map_tensors(lambda tensor: devices.add(tensor.device.type), moved)
    assert devices == ({"meta"} if not isinstance(batch, numpy.ndarray) else set())
    devices.clear()
    map_tensors(lambda tensor: devices.add(tensor.device.type), batch)
    assert devices <= {"cpu"}
    if not isinstance(batch, types.MappingProxyType):
        assert type(moved) is type(batch)


def test_what_a_mapping_has_besides_its_items_is_kept():
    assert to_device(KINDS["encoding"], META).note == "kept"
    assert cut(KINDS["encoding"], slice(0, 1), 4).note == "kept"


def test_an_object_with_its_own_way_to_move_is_moved_by_that_wherever_it_stands():
    batch = {"boxes": [Boxes(rows())], "x": rows()}
    assert to_device(batch, META)["boxes"][0].tensor.device == META
    assert to_device(Boxes(rows()), META).tensor.device == META


def test_a_packed_sequence_moves_as_it_must():
    packed = pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    moved, labels = to_device((packed, torch.arange(2)), META)
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device, moved.batch_sizes.device.type, labels.device) == (META, "cpu", META)


def test_objects_pin_themselves():
    assert pin({"boxes": Boxes(rows()), "name": "a"}) == {"boxes": "pinned by itself", "name": "a"}


@pytest.mark.cuda
def test_pinned_batches_reach_the_gpu():
    batch = pin({"x": rows(), "packed": pack_sequence([torch.arange(3.0)])})
    assert batch["x"].is_pinned()
    assert batch["packed"].data.is_pinned()
    moved = to_device(batch, torch.device("cuda"))
    assert same(moved["x"].cpu(), rows())
    assert moved["packed"].data.is_cuda
