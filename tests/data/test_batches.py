"""Promises about batches: whatever they are made of, they are moved, cut, or refused with a
reason."""

import collections
import collections.abc
import dataclasses
import types
from typing import NamedTuple

import numpy
import pytest
import torch
from codes import raises
from data_helpers import same
from hypothesis import Phase, given, settings
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


class Instances:
    """An object that passes all arguments of its ``to`` on to those in it."""

    def __init__(self, parts):
        self.parts = parts

    def to(self, *args, **kwargs):
        return Instances([part.to(*args, **kwargs) for part in self.parts])


@dataclasses.dataclass
class Scaled:
    """A dataclass that changes what it is given."""

    pixels: torch.Tensor

    def __post_init__(self):
        self.pixels = self.pixels / 255


@dataclasses.dataclass(init=False)
class Sealed:
    """A dataclass that refuses changes in its own way, with more than its fields."""

    pixels: torch.Tensor

    def __init__(self, pixels):
        vars(self).update(pixels=pixels, mask=pixels > 0, names=["first"])

    def __setattr__(self, name, value):
        raise AttributeError(name)


def rows(num=4, columns=2):
    return torch.arange(num * columns).reshape(num, columns)


WRAPPED = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"x": x, "y": y, "nothing": [], "none": None, "no keys": {}},
    "ordered dict": lambda x, y: collections.OrderedDict(x=x, y=y),
    "default dict": lambda x, y: collections.defaultdict(list, x=x, y=y),
    "counter": lambda x, y: collections.Counter({"x": x, "y": y}),  # whose update() adds
    "read-only dict": lambda x, y: types.MappingProxyType({"x": x, "y": y}),
    "named tuple": Pair,
    "dataclass": Graph,
    "encoding": lambda x, y: Encoding({"ids": x, "mask": y}, note="kept"),
    "awkward dict": lambda x, y: Awkward(first=x, second=y),
}
LEAVES = {
    "tensor": rows,
    "array": lambda num: rows(num).numpy(),
    "texts": lambda num: [f"text {i}" for i in range(num)],
    "numbers": lambda num: list(range(num)),
    "range": range,
    "text": lambda num: "a" * num,
    "bytes": lambda num: b"a" * num,
    "size of an image": lambda num: (224,) * num,
}
drawn = settings(deadline=None, max_examples=50, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])
numbers = st.integers(2, 9)


@st.composite
def batches(draw, num):
    """A batch of so many samples, of any kinds, one in the other."""
    batch = LEAVES[draw(st.sampled_from(sorted(LEAVES)))](num)
    for kind in draw(st.lists(st.sampled_from(sorted(WRAPPED)), min_size=1, max_size=3)):
        batch = WRAPPED[kind](rows(num), batch)
    return batch


def inside(value):
    """The leaves of a batch, and which containers they are in, with their notes."""
    if isinstance(value, collections.abc.Mapping):
        items = value.values()
    elif dataclasses.is_dataclass(value):
        items = [value.nodes, value.kind]
    elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        items = value
    else:
        return [value], []
    leaves, kinds = [], [(type(value), getattr(value, "note", None))]
    for of_item in map(inside, items):
        leaves += of_item[0]
        kinds += of_item[1]
    return leaves, kinds


@drawn
@given(st.data(), numbers)
def test_a_batch_of_any_kinds_is_counted_and_cut_and_keeps_its_kinds(data, num):
    batch, (start, stop) = data.draw(batches(num)), sorted(data.draw(st.tuples(*[st.integers(0, num)] * 2)))
    assert count_samples(batch) == num
    (leaves, kinds), (found, found_kinds) = inside(batch), inside(cut(batch, slice(start, stop), num))
    assert found_kinds == kinds
    for leaf, part in zip(leaves, found, strict=True):
        is_cut = isinstance(leaf, (torch.Tensor, numpy.ndarray, list, range)) and len(leaf)
        assert same(part, leaf[start:stop] if is_cut else leaf)


@drawn
@given(st.data(), numbers)
def test_a_batch_of_any_kinds_is_moved_as_a_copy_of_its_kinds(data, num):
    batch = data.draw(batches(num))
    (leaves, kinds), (moved, moved_kinds) = inside(batch), inside(to_device(batch, META))
    assert moved_kinds == kinds
    assert same(inside(batch)[0], leaves)
    for leaf, other in zip(leaves, moved, strict=True):
        assert other.device == META if isinstance(leaf, torch.Tensor) else same(other, leaf)


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
    beside = {"x": rows(3), "notes": [("a", "b", "c"), "train"]}
    assert cut(beside, slice(1, 3), 3)["notes"] == [("b", "c"), "train"]


def test_a_whole_batch_is_passed_on_as_it_is_also_where_it_could_not_be_cut():
    batch = {"x": rows(2), "tokens": [[1, 2], [3, 4]]}
    assert cut(batch, slice(0, 2), 2) is batch


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


def test_an_object_with_its_own_way_to_move_is_moved_by_that_wherever_it_stands():
    batch = {"boxes": [Boxes(rows())], "x": rows()}
    assert to_device(batch, META)["boxes"][0].tensor.device == META
    assert to_device(Boxes(rows()), META).tensor.device == META


def test_an_object_that_cannot_move_without_blocking_is_moved_as_it_can():
    boxes, image = to_device(Instances([Boxes(rows()), rows()]), META).parts
    assert (boxes.tensor.device, image.device) == (META, META)


def test_what_a_dataclass_has_done_with_its_items_is_not_done_again_where_it_is_moved():
    batch = Scaled(torch.full((2,), 255.0))
    assert map_tensors(torch.clone, batch).pixels.tolist() == [1.0, 1.0]
    assert to_device(batch, META).pixels.device == META
    assert batch.pixels.device.type == "cpu"


def test_what_a_dataclass_has_beside_its_fields_moves_with_them():
    batch = Sealed(torch.ones(2))
    moved = to_device(batch, META)
    assert (moved.pixels.device, moved.mask.device) == (META, META)
    assert batch.mask.device.type == "cpu"
    copied = map_tensors(torch.clone, batch)
    assert copied.mask is not batch.mask
    assert copied.names is not batch.names


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
