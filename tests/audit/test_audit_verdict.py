"""Which rank is wrong, by what several have computed. Pure."""

import pytest

from lockstep.audit.verdict import Computed, judge

pytestmark = pytest.mark.timeout(20)
A, B, C = ({"the loss": 1, "weight": number} for number in (1, 2, 3))


def by(rank, sums):
    return Computed(rank=rank, where=f"host-{rank}, cpu", sums=sums)


# The first, the second, the judges', and who is wrong.
CASES = {
    "a third agrees with the auditor": (by(0, A), by(1, B), [by(2, B)], (0,)),
    "a third agrees with the owner": (by(0, A), by(1, B), [by(2, A)], (1,)),
    "a third agrees with nobody": (by(0, A), by(1, B), [by(2, C)], ()),
    "the owner was wrong once": (by(0, A), by(1, B), [by(0, B), by(1, B)], (0,)),
    "the auditor was wrong once": (by(0, A), by(1, B), [by(0, A), by(1, A)], (1,)),
    "each of two repeats its own": (by(0, A), by(1, B), [by(0, A), by(1, B)], (0, 1)),
    "two change their minds": (by(0, A), by(1, B), [by(0, B), by(1, A)], ()),
    "alone, wrong the first time": (by(0, A), by(0, B), [by(0, B)], (0,)),
    "alone, wrong the second time": (by(0, A), by(0, B), [by(0, A)], (0,)),
    "alone, another each time": (by(0, A), by(0, B), [by(0, C)], ()),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_is_named(case):
    first, second, again, wrong = CASES[case]
    found = judge(first, second, again, (40, 1, 2))
    assert found.wrong == wrong
    assert (found.step, found.phase, found.shard, found.parameter) == (40, 1, 2, "weight")
    assert found.text.startswith("audit of step 40, shard 2, phase 2: ")
    assert all(f"rank {rank} (host-{rank}, cpu)" in found.text for rank in wrong)
    assert ("WRONG" in found.text) == bool(wrong)
    assert "nothing is saved after it" in found.text


def test_the_first_difference_in_the_order_of_the_backward_pass_is_named():
    first, second = {"the loss": 1, "last": 2, "first": 3}, {"the loss": 1, "last": 5, "first": 6}
    assert judge(by(0, first), by(1, second), [by(2, first)], (1, 0, 0)).parameter == "last"


def test_a_parameter_that_has_a_gradient_on_one_rank_only_is_a_difference():
    assert judge(by(0, A), by(1, {**A, "bias": 4}), [by(2, A)], (1, 0, 0)).parameter == "bias"
