"""Looks that become rare."""

from lockstep._plan.powers_of_two import PowersOfTwo


def test_the_first_steps_of_a_launch_are_looked_at_and_then_ever_fewer():
    looks = PowersOfTwo()
    assert [step for step in range(1, 40) if looks.take(step)] == [1, 2, 4, 8, 16, 32]
    looks = PowersOfTwo()
    assert [step for step in range(1001, 1020) if looks.take(step)] == [1001, 1002, 1004, 1008, 1016]
