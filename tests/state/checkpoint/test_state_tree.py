"""Promises about state: it comes back as it was, to the bit and to the type, or is refused by its
place; no code is run."""

import collections
import json
import math
import random
import struct
from typing import NamedTuple

import numpy as np
import pytest
import torch
from codes import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from lockstep._base.errors import ConfigError
from lockstep._state.checkpoint.tree import put_together, take_apart

pytestmark = pytest.mark.timeout(60)
thorough = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
]
NUMBERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.fixture(autouse=True)
def _directory_of_the_compiler(monkeypatch, tmp_path):
    # torch sets it at an optimizer's first step, for good
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def as_in_a_file(tree, name="state"):
    """The value and the tensors of a tree, after a journey through the text and the bytes of
    files."""
    value, tensors = take_apart(tree, name)
    text = json.dumps(value, allow_nan=False)
    assert all(type(tensor) is torch.Tensor and not tensor.is_neg() | tensor.is_conj() for tensor in tensors.values())
    return json.loads(text), load(save({key: tensor.contiguous().clone() for key, tensor in tensors.items()}))


def there_and_back(tree):
    return put_together(*as_in_a_file(tree))


def print_of(value):
    """Equal for two values if they are of the same types, and the same to the bit, all the way
    down."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        # A clone is laid out as what it is made from, only without gaps and repeats: as that should
        # come back
        bits = value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
        flags = (value.requires_grad, str(value.device), bits.dtype, tuple(value.shape), value.detach().clone().stride())
        return kind, flags, bits.view(torch.uint8).numpy().tobytes() if bits.numel() else b""
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, str):
        native = np.array(value, value.dtype.newbyteorder("="), order="K")
        strides = [stride for stride, size in zip(native.strides, native.shape, strict=True) if size > 1 and native.size]
        # of the others numpy makes anything
        return kind, native.dtype.name, native.shape, strides, native.tobytes()
    if isinstance(value, float):
        return kind, struct.pack("d", value)
    if isinstance(value, complex):
        return kind, struct.pack("dd", value.real, value.imag)
    if isinstance(value, dict):
        beside = (getattr(value, "default_factory", None), getattr(value, "_metadata", None))
        return kind, beside, [(print_of(key), print_of(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, map(print_of, value)))
    if isinstance(value, (list, tuple, collections.deque)):
        return kind, getattr(value, "maxlen", None), [print_of(item) for item in value]
    return kind, hex(value) if type(value) is int else repr(value)


any_text = st.text()
# of which there are 2^53 - 2
floats = st.floats().map(lambda value: math.nan if math.isnan(value) else value)
integers = st.integers() | st.integers(-(2**70), 2**70)
ends = st.none() | st.integers(-5, 5)
numpy_scalars = st.builds(
    lambda bits, name: np.frombuffer(bits, name)[-1],
    st.binary(min_size=16, max_size=16),
    st.sampled_from(NUMBERS),
)
hashable = st.one_of(
    *(st.none(), st.booleans(), integers, floats, any_text, st.binary(), st.builds(complex, floats, floats), numpy_scalars),
    st.lists(st.integers(0, 2**40)).map(torch.Size),
    st.sampled_from([*DTYPES, torch.int4, torch.qint8]),
    st.sampled_from(["cpu", "cuda", "cuda:1", "meta"]).map(torch.device),
    st.booleans().map(np.bool_),
)
keys = hashable | st.tuples(hashable, hashable) | st.frozensets(hashable, max_size=3)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    num_bytes = math.prod(shape) * dtype.itemsize
    noise = np.frombuffer(draw(st.randoms()).randbytes(num_bytes), np.uint8)
    raw = torch.from_numpy(noise & 1 if dtype is torch.bool else noise.copy())
    tensor = (raw.view(dtype) if num_bytes else torch.empty(0, dtype=dtype)).reshape(shape)
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        tensor = tensor[draw(st.sampled_from([slice(None, None, 2), slice(1, None), slice(0, 0)]))]
    if draw(st.booleans()):
        tensor = tensor.expand(2, *tensor.shape)
    if not dtype.is_floating_point and not dtype.is_complex:
        return tensor
    return draw(
        st.sampled_from([tensor, nn.Parameter(tensor), nn.Parameter(tensor, False), tensor.detach().requires_grad_()])
    )


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from([*NUMBERS, "bool", ">i4", ">f8", ">c16"])))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    noise = np.frombuffer(draw(st.randoms()).randbytes(math.prod(shape) * dtype.itemsize), np.uint8)
    # it cannot be written to
    array = (noise & 1 if dtype.kind == "b" else noise).view(dtype).reshape(shape)
    array = array.transpose(draw(st.permutations(range(len(shape)))))
    return array[:: draw(st.sampled_from([1, 2, -1]))] if shape else array


def containers(inner):
    items = st.lists(st.tuples(keys, inner), max_size=3)
    return st.one_of(
        *(st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(any_text, inner, max_size=3)),
        items.map(dict),
        items.map(collections.OrderedDict),
        st.builds(collections.defaultdict, st.sampled_from([None, int, float, list, dict, set, str]), items),
        st.dictionaries(hashable, st.integers(0, 9), max_size=3).map(collections.Counter),
        st.builds(collections.deque, st.lists(inner, max_size=4), ends.map(lambda size: size and abs(size))),
        *(st.sets(keys, max_size=3), st.frozensets(keys, max_size=3)),
    )


trees = st.recursive(hashable | tensors() | arrays(), containers, max_leaves=12)


@pytest.mark.long
@thorough
@given(trees | tensors() | arrays())
def test_a_tree_comes_back_as_it_was(tree):
    assert print_of(there_and_back(tree)) == print_of(tree)


@pytest.mark.parametrize(
    "value",
    [
        *(-0.0, math.inf, -math.inf, math.nan, 5e-324),
        *(complex(-0.0, math.nan), complex(math.inf, -0.0)),
        # Python has no decimals for these
        *(2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 7**6000, {-(7**6000): {7**6000}}),
        *("", "$", "\0", "\U0001f600", {"ü": 0, "$": 1}),
        *(np.float32(-0.0), np.float64(0.1), np.complex64(complex(0.0, -math.inf)), np.bool_(True)),
        # the latter a signalling one
        *(np.frombuffer(b"\1\xfc", "f2")[0], np.frombuffer(b"\1\0\x80\x7f", "f4")[0]),
        *({1: 0, "1": 1, None: 2, "None": 3}, {True: 0}, {1.0: 0}, {"b": 0, "a": 1}, collections.deque([1], 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_awkward_ones_come_back_as_they_were(value):
    assert print_of(there_and_back(value)) == print_of(value)


# --- tensors


def test_tensors_have_readable_names_each_its_own():
    one = torch.ones(1)
    tree = {
        "state": {0: {"exp avg": one}, "0": {"exp avg": one + 1}, (0,): one + 2},
        "a.b": one + 3,
        "a": {"b": one + 4},
        "list": [one + 5, (one + 6,)],
    }
    assert {name: tensor.item() for name, tensor in take_apart(tree, "optimizer-1")[1].items()} == {
        "optimizer-1.state.0.exp_avg": 1,
        "optimizer-1.state.0.exp_avg~2": 2,
        "optimizer-1.state.2": 3,
        "optimizer-1.a.b": 4,
        "optimizer-1.a.b~2": 5,
        "optimizer-1.list.0": 6,
        "optimizer-1.list.1.0": 7,
    }


def test_a_tensor_that_is_there_twice_is_kept_once_and_comes_back_as_one():
    shared, array = nn.Parameter(torch.ones(3)), np.ones(3)
    tree = {"a": shared, "b": [shared, array], shared: array}
    assert len(as_in_a_file(tree)[1]) == 2
    back = there_and_back(tree)
    assert back["a"] is back["b"][0] is list(back)[2]
    assert back["b"][1] is back[back["a"]]


def test_tensors_are_handed_out_without_a_copy_and_without_their_history():
    kept = nn.Parameter(torch.ones(4, 4))
    tensors = take_apart([kept, kept[::2], torch.ones(2, dtype=torch.complex128)], "state")[1]
    assert not any(tensor.requires_grad for tensor in tensors.values())
    assert tensors["state.0"].data_ptr() == tensors["state.1"].data_ptr() == kept.data_ptr()
    assert tensors["state.1"].stride() == (8, 1)
    assert tensors["state.2"].dtype == torch.float64
    assert not there_and_back([kept[::2]])[0].requires_grad


def test_numbers_that_are_negated_or_conjugated_only_on_paper_come_back_so_in_memory():
    number = torch.tensor([1 + 2j, 3 - 4j])
    back = there_and_back([number.conj(), number.conj().imag])
    assert back[0].tolist() == [1 - 2j, 3 + 4j]
    assert back[1].tolist() == [-2, 4]


def test_arrays_are_writable_and_in_the_order_of_their_dimensions():
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    array.setflags(write=False)
    back = there_and_back([array])[0]
    assert back.flags.f_contiguous
    assert back.flags.writeable
    assert back.tolist() == array.tolist()


# --- what torch, numpy and Python keep (optimizers, schedules and scalers:
# tests/prepare/test_state_adapters.py)


def test_a_module_comes_back_with_the_versions_of_its_parts():
    module = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    state = module.state_dict()
    back = there_and_back(state)
    assert print_of(back) == print_of(state)
    assert back._metadata["1"] == {"version": 2}
    module.load_state_dict(back)


def test_random_generators_come_back():
    state = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "new": np.random.default_rng(5).bit_generator.state,
        "random": random.getstate(),
    }
    back = there_and_back(state)
    assert print_of(back) == print_of(state)
    random.Random().setstate(back["random"])
    np.random.RandomState().set_state(back["numpy"])


def test_a_set_is_written_the_same_in_whatever_order_it_is():
    one, other = {0, 8, frozenset([1, 9])}, {frozenset([9, 1]), 8, 0}
    assert [*one] != [*other]
    assert json.dumps(take_apart(one, "state")[0]) == json.dumps(take_apart(other, "state")[0])


# --- what is refused


class Pair(NamedTuple):
    first: int


class Bag(dict):
    pass


class Marked(torch.Tensor):
    pass


def function():
    pass


REFUSED = {
    "function": lambda: function,
    "type": lambda: int,
    "object": object,
    "torch._C.Generator": torch.Generator,
    "test_state_tree.Pair": lambda: Pair(1),
    "test_state_tree.Bag": Bag,
    "test_state_tree.Marked": lambda: torch.zeros(1).as_subclass(Marked),
    "a numpy array of object": lambda: np.array([None]),
    "a sparse_coo tensor": lambda: torch.zeros(2).to_sparse(),
    "a strided tensor of float32 on the device meta": lambda: torch.zeros(2, device="meta"),
    "a defaultdict with the factory <class 'bytes'>": lambda: collections.defaultdict(bytes),
    "str": lambda: "\ud800",  # one half of a surrogate pair
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused_by_its_place_its_type_and_with_what_to_do(what):
    tree = {"state": {}, "param_groups": [{"lr": 0.1, "hook": REFUSED[what]()}]}
    with raises(ConfigError, "value-not-savable") as refusal:
        take_apart(tree, "optimizer-1")
    message = str(refusal.value)
    assert "optimizer-1.param_groups.0.hook" in message
    assert what in message
    assert "state_dict()" in message


def test_the_same_container_in_two_places_is_no_cycle():
    inner = [1]
    assert there_and_back([inner, (inner, inner)]) == [[1], ([1], [1])]


def test_what_was_on_an_accelerator_goes_to_the_device_of_the_same_number_if_the_reader_has_any():
    # (``meta`` stands for an accelerator: it is a device that every build of PyTorch has.)
    value = [{"$tensor": name, "device": kind, **place} for name, kind, place in PLACED] + [
        {"$device": "cuda:3", "place": 1}
    ]
    tensors = {name: torch.ones(2) for name, _, _ in PLACED}

    def kinds(devices):
        *found, device = put_together(value, tensors, devices)
        return [tensor.device.type for tensor in found] + [device.type]

    cpu, other = torch.device("cpu"), torch.device("meta")
    assert kinds([]) == ["cpu", "cpu", "cpu", "cuda"]  # a reader of the file
    assert kinds([cpu]) == ["cpu"] * 4
    assert kinds([other]) == ["cpu", "meta", "meta", "meta"]
    assert kinds([cpu, other]) == ["cpu", "cpu", "meta", "meta"]


PLACED = [("of the host", "cpu", {}), ("of the first", "cuda", {}), ("of the second", "cuda", {"place": 1})]


def test_the_number_of_a_device_in_its_process_is_kept():
    cpu, other = torch.device("cpu"), torch.device("meta")
    value, _ = take_apart([cpu, other], "x", [other, cpu])
    assert value == [{"$device": "cpu"}, {"$device": "meta"}]
    assert take_apart(other, "x", [cpu, other])[0] == {"$device": "meta", "place": 1}


def test_a_restored_tensor_has_memory_of_its_own_and_learns_as_before():
    value, stored = take_apart({"leaf": torch.ones(2, requires_grad=True), "other": torch.ones(2)}, "state")
    restored = put_together(value, stored)
    assert all(restored[name].data_ptr() != stored[f"state.{name}"].data_ptr() for name in restored)
    assert [restored[name].requires_grad for name in ("leaf", "other")] == [True, False]


def test_an_integer_of_more_than_64_bits_is_no_number_of_json():
    for number, is_plain in ((2**64 - 1, True), (2**64, False), (-(2**63), True), (-(2**63) - 1, False)):
        value, _ = take_apart(number, "state")
        assert (value == number) == is_plain
        assert put_together(value, {}) == number
