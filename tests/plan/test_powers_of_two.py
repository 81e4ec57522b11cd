"""Looks that become rare."""

import pytest

from lockstep._plan.powers_of_two import PowersOfTwo


def test_the_first_steps_of_a_launch_are_looked_at_and_then_ever_fewer():
    looks = PowersOfTwo()
    assert [step for step in range(1, 40) if looks.take(step)] == [1, 2, 4, 8, 16, 32]
    looks = PowersOfTwo()
    assert [step for step in range(1001, 1020) if looks.take(step)] == [1001, 1002, 1004, 1008, 1016]


@pytest.mark.parametrize(("between", "taken"), [(False, [1, 2, 4, 8, 16, 32, 64]), (True, [1, 3, 6, 12, 24, 48, 96])])
@pytest.mark.parametrize("first", [1, 1000])
def test_nobody_need_ask_before_the_next_one_is_due(between, taken, first):
    looks, asked, found = PowersOfTwo(between=between), 0, []
    for step in range(first, first + 100):
        if step >= looks.next:
            asked += 1
            found += [step] if looks.take(step) else []
    assert found == [first - 1 + step for step in taken]
    assert asked <= 2 * len(taken)
