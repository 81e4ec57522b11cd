"""Which rank is called slow, and which is not."""

import random

import pytest

from lockstep._events.measure.split import busy_of
from lockstep._tools.explain.slow_ranks import SlowRank, SlowRanks, find_slow_rank


def phases(count, *rows):
    return [[[*row, sum(row[1:])] for row in rows]] * count


EVEN = (8.0, 0.0, 0.01, 0.02, 0.0)


def told(windows, *, may_judge=True):
    found = []
    slow_ranks = SlowRanks(may_judge=may_judge, tell=found.append)
    for rows in windows:
        slow_ranks.add(rows, busy_of(rows))
    return found


@pytest.mark.parametrize(("column", "activity"), [(1, "data"), (2, "forward"), (3, "backward"), (4, "script")])
def test_a_rank_that_is_always_slower_is_named_with_what_it_is_slow_in_within_50_phases(column, activity):
    late = list(EVEN)
    late[column] += 0.03
    (found,) = told(phases(50, EVEN, EVEN, late))
    assert (found.rank, found.activity) == (2, activity)
    assert found.cost == pytest.approx(0.5)
    text = found.describe(["node5", "node6", "node7"], 50)
    assert all(fact in text for fact in ("rank 2", "node7", "step 50"))


@pytest.mark.parametrize("activity", ["data", "forward", "backward", "script"])
def test_the_advice_for_a_rank_beside_faster_ones_is_not_about_the_machine(activity):
    found = SlowRank(1, activity, 2.0, 0.5)
    beside, alone = (found.describe(hosts, 50) for hosts in (["b", "b", "a"], ["a", "b", "a"]))
    assert "clock rate" not in beside
    assert ("clock rate" in alone) is (activity in ("forward", "backward"))


@pytest.mark.parametrize("samples", [1, 3, 8, 49])
def test_a_slow_rank_is_found_with_any_number_of_samples(samples):
    even, late = (float(samples), 0.0, 0.0101, 0.0203, 0.0007), (float(samples), 0.0, 0.0301, 0.0203, 0.0007)
    assert [found.rank for found in told(phases(50, even, late))] == [1]


def test_each_case_is_told_once_and_again_when_it_comes_back():
    late = (8.0, 0.0, 0.03, 0.02, 0.0)
    assert len(told(phases(400, EVEN, late))) == 1
    both = told([*phases(100, EVEN, late), *phases(100, EVEN, EVEN), *phases(100, EVEN, late)])
    assert [found.rank for found in both] == [1, 1]


def test_a_slow_rank_that_was_given_fewer_samples_costs_only_what_the_others_still_wait():
    fast, slow = (
        (10.0, 0.0, 0.01, 0.02, 0.0),
        (6.0, 0.0, 0.012, 0.024, 0.0),
    )  # half as fast, and busy for 36 ms instead of 30
    (found,) = told(phases(100, fast, slow))
    assert (found.rank, found.cost) == (1, pytest.approx(1 / 6))
    assert told(phases(100, fast, (5.0, 0.0, 0.01, 0.02, 0.0))) == []


def test_a_rank_with_more_samples_is_not_slow():
    assert told(phases(200, EVEN, (16.0, 0.0, 0.02, 0.04, 0.0))) == []


def test_a_rank_with_few_samples_is_not_slow_because_what_is_fixed_weighs_more_on_it():
    assert told(phases(200, (16.0, 0.0, 0.016, 0.0, 0.01), (8.0, 0.0, 0.008, 0.0, 0.01))) == []


def test_what_is_stolen_at_random_makes_nobody_slow():
    draw = random.Random(1)
    rows = [[(8.0, 0.0, 0.01 * draw.choice((1, 1, 1, 5)), 0.02, 0.0) for _ in range(4)] for _ in range(2000)]
    assert told([phases(1, *row)[0] for row in rows]) == []


def test_one_long_stretch_and_a_difference_that_costs_little_make_nobody_slow():
    long = (8.0, 60.0, 0.01, 0.02, 0.0)
    assert told([*phases(30, EVEN, EVEN), *phases(1, EVEN, long), *phases(100, EVEN, EVEN)]) == []
    assert told(phases(200, EVEN, (8.0, 0.0, 0.0115, 0.023, 0.0))) == []


def test_what_another_rank_does_once_is_not_what_the_slow_one_costs():
    late, long = (8.0, 0.0, 0.06, 0.02, 0.0), (8.0, 0.0, 0.01, 0.02, 16.0)
    (found,) = told([*phases(30, EVEN, EVEN, late), *phases(1, long, EVEN, EVEN), *phases(69, EVEN, EVEN, late)])
    assert (found.rank, found.activity, found.times) == (2, "forward", pytest.approx(6.0))
    assert found.cost == pytest.approx(0.05 / 0.08)


def test_brief_phases_are_judged_over_more_of_them():
    even, late = (8.0, 0.0, 0.001, 0.002, 0.0), (8.0, 0.0, 0.003, 0.002, 0.0)
    assert told(phases(300, even, late)) == []
    assert [found.rank for found in told(phases(500, even, late))] == [1]


def test_nobody_is_judged_where_all_wait_in_the_forward_pass_or_someone_has_no_samples():
    late = (8.0, 0.0, 0.09, 0.02, 0.0)
    assert told(phases(200, EVEN, late), may_judge=False) == []
    window = [(rows, busy_of(rows)) for rows in phases(20, (0.0, 0.0, 0.0, 0.0, 0.0), late)]
    assert find_slow_rank(window) is None
