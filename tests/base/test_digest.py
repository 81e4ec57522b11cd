"""Promises of digests: equal where values are equal to the bit, and nowhere else."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from lockstep._base import digest as digests
from lockstep._base.digest import bit_sum, bit_sum_of_part, bit_sums, digest, sketch, squared_norm, unread_sums

pytestmark = pytest.mark.timeout(60)


@dataclass(slots=True)
class Slotted:
    number: int


def repeated(*values):
    """One element of a sparse tensor, of which these values are the summands."""
    return torch.sparse_coo_tensor([[0] * len(values)], values, (1,), check_invariants=True)


SAME = {
    "layout": (torch.arange(24.0).reshape(1, 2, 3, 4), torch.arange(24.0).reshape(1, 2, 3, 4)),
    "not a number": (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    "conjugate view": (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
    "a view": (torch.arange(6.0)[::2], torch.tensor([0.0, 2.0, 4.0])),
    "a column of one row": (torch.ones(1, 5)[:, 0], torch.ones(1)),
    "sets of another order": ({0, 8}, {8, 0}),
    "containers": ({"x": [1, 2.0, None, "a"]}, {"x": [1, 2.0, None, "a"]}),
}
OTHERS = {
    "signed zero": (torch.tensor(0.0), torch.tensor(-0.0)),
    "dtype": (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
    "shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "last bit": (torch.tensor(1.0), torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))),
    "no elements": (torch.zeros(0), torch.zeros(0, 2)),
    "sparse values": (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
    "arrays": (np.zeros(2), np.zeros(2, dtype=np.float32)),
    "numbers": (1, 1.0),
    "key": ({"a": 1}, {"b": 1}),
    "nesting": ([[1], 2], [[1, 2]]),
    "slots": (Slotted(1), Slotted(2)),
    "sparse elements added in another order": (repeated(1.0, 2.0), repeated(2.0, 1.0)),
    "bfloat16": (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
}
SAME["layout"] = (SAME["layout"][0], SAME["layout"][1].to(memory_format=torch.channels_last))


@pytest.mark.parametrize("name", SAME)
def test_values_that_are_equal_have_equal_digests(name):
    one, other = SAME[name]
    assert digest(one) == digest(other)


@pytest.mark.parametrize("name", OTHERS)
def test_values_that_differ_in_anything_have_other_digests(name):
    one, other = OTHERS[name]
    assert digest(one) != digest(other)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.complex128])
def test_the_sum_of_bits_depends_on_the_elements_alone_wherever_they_are_in_memory(dtype):
    for size in range(20):
        values = torch.arange(size).to(dtype)
        padded = b"".join([bytes(values.view(torch.uint8).numpy()), bytes(-values.nbytes % 8)]) if size else b""
        words, rest = divmod(values.nbytes, 8)
        numbers = np.frombuffer(padded[: words * 8], dtype=np.int64).tolist() + list(padded[words * 8 :][:rest])
        expected = (sum(numbers) + 2**63) % 2**64 - 2**63
        elsewhere = [torch.zeros(9 + size, dtype=dtype)[offset : offset + size].copy_(values) for offset in range(9)]
        strided = torch.zeros(size, 3, dtype=dtype)[:, 1].copy_(values)
        assert set(bit_sums([values, strided, *elsewhere])) == {expected}, size
        for cut in range(size + 1):  # whoever has which part of it
            begin = cut * values.itemsize
            parts = [bit_sum_of_part(values[:cut], 0, values.nbytes), bit_sum_of_part(values[cut:], begin, values.nbytes)]
            assert int(sum(parts)) == expected, (size, cut)
            middle = [bit_sum_of_part(values[n : n + 1], n * values.itemsize, values.nbytes) for n in range(size)]
            assert int(sum(middle)) == expected, size


class Shown(torch.Tensor):
    """A tensor of a class of its own."""


def kinds_of_tensors():
    """Of each kind several, some of one shape."""
    shapes = [(), (0,), (2, 0), (1,), (3,), (3,), (2, 3), (3, 2), (8,), (5, 7), (5, 7), (64,)]
    dtypes = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16]
    dtypes += [torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16]
    generator, found = torch.Generator().manual_seed(0), []
    for dtype in dtypes:
        for shape in shapes:
            found.append((100 * torch.randn(shape, generator=generator)).to(dtype))
    numbers = torch.randn(6, 5, generator=generator)
    shared = numbers.view(-1)
    found += [numbers.t(), numbers[:, 1:2], numbers[::2, ::3], numbers[1], numbers[2], shared[1:4], shared[2:5]]
    found += [numbers[:1].expand(4, 5), numbers.to(memory_format=torch.contiguous_format), torch.nn.Parameter(numbers)]
    found += [torch.nn.Buffer(numbers), numbers.as_subclass(Shown), numbers.to_sparse()]
    number = torch.tensor([1 + 2j, -3j])
    found += [number, number.conj(), number.imag, number.conj().imag, torch.tensor([float("nan"), -0.0])]
    found += [torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.ones(3, requires_grad=True) * 2]
    with torch.inference_mode():
        found += [torch.ones(3), torch.ones(5, 7)]
    return found


@pytest.mark.parametrize("limits", [(2**20, 2**24), (64, 2**24), (2**20, 70), (0, 1)])
def test_sums_of_many_tensors_together_are_those_of_each_alone(limits, monkeypatch):
    tensors = kinds_of_tensors()
    expected = [int(bit_sum(tensor)) for tensor in tensors]
    monkeypatch.setattr(digests, "_MOST_GROUPED", limits[0])
    monkeypatch.setattr(digests, "_MOST_STACKED", limits[1])
    assert bit_sums(tensors) == expected
    assert [int(total) for total in unread_sums(tensors).scalars()] == expected
    assert bit_sums(tensors[::-1]) == expected[::-1]
    assert bit_sums([]) == []


def test_tensors_of_one_shape_are_summed_together():
    sizes = []

    class Stacks(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.stack:
                sizes.append(len(args[0]))
            return function(*args, **(kwargs or {}))

    tensors = [torch.full((4,), number) for number in range(100)] + [torch.ones(3) for _ in range(100)]
    with Stacks():
        sums = unread_sums(tensors)
    assert sizes == [100, 100]
    assert [len(vector) for vector in sums.vectors] == [200]  # which is read at once


def test_an_object_that_holds_itself_has_a_digest():
    circle = []
    circle.append(circle)
    assert digest(circle) == digest(circle)


def test_the_norm_does_not_depend_on_threads():
    numbers = torch.linspace(-1, 2, 400_000)
    before = torch.get_num_threads()
    found = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.add(squared_norm(numbers))
    torch.set_num_threads(before)
    assert len(found) == 1
    assert squared_norm(torch.eye(3).to_sparse()) == 3.0


@pytest.mark.parametrize("name", SAME)
def test_values_that_are_equal_have_equal_sketches(name):
    one, other = SAME[name]
    assert sketch(one) == sketch(other)


@pytest.mark.parametrize("name", OTHERS)
def test_short_values_that_differ_have_different_sketches(name):
    one, other = OTHERS[name]
    assert sketch(one) != sketch(other)


class Record:
    def __init__(self, number):
        self.values, self.itself = torch.full((500,), number), self


LONG = {
    "images": lambda at: [torch.full((3, 224, 224), at).permute(0, 2, 1) for _ in range(64)],
    "arrays": lambda at: {"image": np.full((224, 224, 3), at)},
    "numbers": lambda at: [{"tokens": list(range(at, at + 2000))}],
    "texts": lambda at: ["a rather long text " * 99 + str(at)] * 9,
    "bytes": lambda at: bytes([at]) * 9999,
    "objects": lambda at: [Record(at)],
}


@pytest.mark.parametrize("name", LONG)
def test_sketches_of_long_values_tell_them_apart(name):
    assert sketch(LONG[name](1)) == sketch(LONG[name](1)) != sketch(LONG[name](2))


def test_a_sketch_looks_at_few_of_many_samples():
    looked_at = []

    class Watched(list):
        def __getitem__(self, at):
            looked_at.append(at)
            return super().__getitem__(at)

    sketch(Watched(range(10_000)))
    assert (looked_at[0], looked_at[-1]) == (0, 9999)
    assert len(looked_at) < 100
