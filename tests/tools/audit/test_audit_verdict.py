"""Which rank is wrong, by what several have computed. Pure."""

import pytest

from lockstep._tools.audit.gradient_sums import digest_of
from lockstep._tools.audit.verdict import Computed, first_difference, judge

pytestmark = pytest.mark.timeout(20)
A, B, C = ({"the loss": 1, "weight": number} for number in (1, 2, 3))


def by(rank, sums):
    return Computed(rank=rank, where=f"host-{rank}, cpu", sums=sums)


# The first, the second, the judges', who is wrong, and what is said of it.
F, S = by(0, A), by(1, B)
CASES = {
    "all agree with the auditor, and the owner repeats its own": (F, S, [by(2, B), by(0, A), S], (0,), "wrong"),
    "all agree with the owner, and the auditor repeats its own": (F, S, [F, by(1, B), by(2, A)], (1,), "wrong"),
    "the owner was wrong once, beside a third": (F, S, [by(0, B), by(1, B), by(2, B)], (0,), "wrong-once"),
    "the owner does not repeat its own": (F, S, [by(0, C), by(1, B), by(2, B)], (), "not-repeated"),
    "the auditor does not repeat its own": (F, S, [by(0, A), by(1, C), by(2, A)], (), "not-repeated"),
    "a third agrees with nobody": (F, S, [by(0, A), by(1, B), by(2, C)], (), "not-repeatable"),
    "the owner was wrong once": (F, S, [by(0, B), by(1, B)], (0,), "wrong-once"),
    "each of two repeats its own": (F, S, [by(0, A), by(1, B)], (0, 1), "wrong"),
    "two change their minds": (F, S, [by(0, B), by(1, A)], (), "not-repeatable"),
    "alone, wrong the first time": (F, by(0, B), [by(0, B)], (0,), "wrong-once"),
    "alone, another each time": (F, by(0, B), [by(0, C)], (), "not-repeatable"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_is_named(case):
    first, second, again, wrong, code = CASES[case]
    found = judge(first, second, again, (40, 1, 2))
    assert found.wrong == wrong
    assert (found.step, found.phase, found.shard, found.parameter) == (40, 1, 2, "weight")
    assert found.text.startswith("audit of step 40, shard 2, phase 2: ")
    assert all(f"rank {rank} (host-{rank}, cpu)" in found.text for rank in wrong)
    assert ("WRONG" in found.text) == bool(wrong)
    assert found.code == code
    if code == "not-repeated":
        assert f"rank {0 if 'owner' in case else 1} (" in found.headline


def test_the_first_difference_in_the_order_of_the_backward_pass_is_named():
    first, second = {"the loss": 1, "last": 2, "first": 3}, {"the loss": 1, "last": 5, "first": 6}
    assert judge(by(0, first), by(1, second), [by(0, first), by(1, second), by(2, first)], (1, 0, 0)).parameter == "last"


def test_a_parameter_that_has_a_gradient_on_one_rank_only_is_a_difference():
    assert judge(F, by(1, {**A, "bias": 4}), [F, by(1, B), by(2, A)], (1, 0, 0)).parameter == "bias"


def test_sums_in_another_order_are_equal():
    assert digest_of({"last": 1, "first": 2}) == digest_of({"first": 2, "last": 1}) != digest_of({"first": 1, "last": 2})
    assert first_difference({"last": 1, "first": 2}, {"first": 2, "last": 1}) == "nothing"
