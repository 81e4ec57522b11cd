"""Promises of the memory that copies of a device's tensors share. (Copies: tests/simulated.)"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep._state.checkpoint.pinned import pack

pytestmark = pytest.mark.timeout(20)
MB = 1 << 20


def of_gpt2():
    """The bytes of GPT-2's parameters and of Adam's two moments of each."""
    block = [768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768, 768, 768]
    parameters = [50257 * 768, 1024 * 768, *(block * 12), 768, 768]
    return {f"{part} {number}": 4 * size for part in range(3) for number, size in enumerate(parameters)}


def total(blocks):
    return sum(size for size, _ in blocks)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40) | st.integers(0, 300 * MB), max_size=12))
def test_each_tensor_has_memory_of_its_own_in_blocks_that_pytorch_does_not_enlarge(sizes):
    blocks = pack(dict(enumerate(sizes)))
    seen = []
    for size, starts in blocks:
        assert size.bit_count() == 1
        end = 0
        for number, start in sorted(starts.items(), key=lambda one: (one[1], sizes[one[0]])):
            assert start % 64 == 0
            assert start >= end
            end = start + sizes[number]
            seen.append(number)
        assert end <= size
    assert sorted(seen) == list(range(len(sizes)))
    assert total(blocks) <= 2 * sum(-(-size // 64) * 64 for size in sizes) + MB


def test_a_model_needs_little_more_than_its_bytes():
    sizes = of_gpt2()
    each_for_itself = sum(1 << (size - 1).bit_length() for size in sizes.values())
    assert each_for_itself > 1.4 * sum(sizes.values())
    assert total(pack(sizes)) < 1.03 * sum(sizes.values())


def test_tensors_that_leave_much_of_several_blocks_have_one():
    assert total(pack(dict.fromkeys("abc", 160 * MB))) == 512 * MB
    assert total(pack(dict.fromkeys("abc", 64 * MB))) == 192 * MB
