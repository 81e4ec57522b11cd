"""Promises of intervals: as wide as Student's t has them, in proportion, and never from a single
value."""

import random

import pytest

from lockstep._tools.compare.confidence import interval_of, middle

pytestmark = pytest.mark.timeout(30)


def test_one_measurement_says_nothing_about_noise():
    assert interval_of([100.0]) is None
    assert middle([100.0]) == 100.0


def test_the_interval_of_three_is_that_of_a_table_of_students_t():
    interval = interval_of([1.0, 2.0, 4.0])  # logarithms 0, 1, 2 to base 2: mean 1, deviation 1
    reach = 4.303 / 3**0.5
    assert (interval.low, interval.high) == (pytest.approx(2 ** (1 - reach)), pytest.approx(2 ** (1 + reach)))
    assert middle([1.0, 2.0, 4.0]) == pytest.approx(2.0)
    assert interval.half_width == pytest.approx(100 * (2**reach - 1))


def test_two_equal_rows_are_called_different_in_one_comparison_of_twenty():
    rounds, draw = 3, random.Random(3)
    trials = 4000

    def ratio():
        machine = draw.gauss(0, 0.2)  # what makes a whole round slower
        return 2.0 ** (draw.gauss(0, 0.03) + machine) / 2.0 ** (draw.gauss(0, 0.03) + machine)

    different = sum(not interval_of([ratio() for _ in range(rounds)]).has(1.0) for _ in range(trials))
    assert 0.035 < different / trials < 0.065
