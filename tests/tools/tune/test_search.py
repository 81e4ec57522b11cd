"""Promises of the search: what helps is found, what does not ends it, and chance is not taken for a
gain."""

import pytest

from lockstep._tools.tune.search import best_of, is_clear, keeps_up, next_to_try

pytestmark = pytest.mark.timeout(20)


def searched(step_s, present=0):
    """What was tried, in order, where steps take so long with a number of workers."""
    tried = {present: step_s(present)}
    while (number := next_to_try(tried)) is not None:
        assert number not in tried
        tried[number] = step_s(number)
    return tried


@pytest.mark.parametrize("needed", [1, 3, 12, 32])
@pytest.mark.parametrize("present", [0, 1, 8])
def test_the_number_that_keeps_up_is_found_within_nine_trials(needed, present):
    tried = searched(lambda workers: max(1.0, (needed if workers else needed + 1) / max(workers, 1)), present)
    best = best_of(tried)
    assert tried[best] == 1.0
    assert needed <= best <= max(2, 1.5 * needed)
    assert len(tried) <= 9


def test_where_more_workers_only_cost_nothing_larger_is_tried():
    tried = searched(lambda workers: 1.0 + workers)
    assert set(tried) == {0, 1, 2}
    assert best_of(tried) == 0


def test_of_numbers_about_as_fast_the_smallest_is_best():
    assert best_of({2: 1.01, 4: 1.0, 0: 3.0}) == 2


def test_a_gain_must_show_in_every_comparison():
    assert is_clear(1.2, 1.1)
    assert not is_clear(1.5, 0.99)
    assert not is_clear(1.01, 1.01)


def test_steps_that_hardly_wait_have_nothing_to_gain():
    assert keeps_up(1.0, 0.01)
    assert not keeps_up(1.0, 0.2)
