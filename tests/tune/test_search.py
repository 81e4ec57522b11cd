"""The search for a loader's settings, on clocks that are simulated: no process is started."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.plan.loading import Loading
from lockstep.tools.tune.costs import Costs, best_workers, loading_with, predict_s
from lockstep.tools.tune.search import NUM_TRIALS, Search, is_clear, may_gain

pytestmark = pytest.mark.timeout(20)

# Article 4, OCT-A images, four cards with DDP on 60 CPUs: seconds of ten epochs, by loader workers a process.
CURVE = {8: 2297, 12: 1582, 14: 1696, 20: 1850, 32: 3014, 54: 3112}
ONE_CPU_S = 20_746  # the same with one CPU


def article_s(workers):
    """The article's clock; between its points, a straight line, and beyond them as at the last but for the first."""
    points = sorted(CURVE)
    if workers < points[0]:
        return CURVE[8] * 8 / max(1, workers)
    for left, right in itertools.pairwise(points):
        if workers <= right:
            return CURVE[left] + (CURVE[right] - CURVE[left]) * (workers - left) / (right - left)
    return CURVE[points[-1]]


def costs(**changes):
    usual = {
        "step_s": 0.010,
        "step_cpu_s": 0.010,
        "copy_s": 0.0,
        "fetch_s": 0.020,
        "fetch_cpu_s": 0.002,
        "longest_fetch_s": 0.025,
        "fetch_spread": 0.1,
        "worker_s": 0.021,
        "receive_s": 0.0003,
        "start_s": 0.05,
        "batch_bytes": 100_000,
        "num_steps": 1000,
        "cores": 4,
    }
    return Costs(**{**usual, **changes})


def run(search, clock):
    """Trial after trial; the numbers of workers in the order in which they were tried."""
    tried = []
    while (loading := search.next()) is not None:
        tried.append(loading.workers)
        search.note(loading, clock(loading.workers))
    return tried


@pytest.mark.parametrize("step_s", [10.0, 100.0, 400.0, 1000.0, 1400.0, 1582.0])
@pytest.mark.parametrize("waits", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("present", [0, 1, 8, 54])
def test_the_best_of_the_articles_curve_is_found_in_at_most_four_trials(step_s, waits, present):
    # What tune knows before its trials: a step, a loader of one worker, and 15 cores for each of the four processes.
    told = costs(
        step_s=step_s,
        step_cpu_s=step_s,
        fetch_s=ONE_CPU_S,
        fetch_cpu_s=(1 - waits) * ONE_CPU_S,
        longest_fetch_s=ONE_CPU_S,
        worker_s=ONE_CPU_S,
        receive_s=0.0,
        start_s=0.0,
        cores=15,
    )
    search = Search(told, Loading(workers=present, prefetch=2))
    tried = run(search, article_s)
    assert len(tried) <= min(4, NUM_TRIALS)
    assert search.best.workers in (12, 13, 14), tried


@given(
    step_s=st.floats(1e-4, 1.0),
    fetch_s=st.floats(1e-4, 1.0),
    busy=st.floats(0.0, 1.0),
    cores=st.sampled_from([0.5, 1, 2, 4, 16]),
    present=st.integers(0, 40),
)
def test_every_search_ends_after_a_few_trials_never_repeats_one_and_stays_in_bounds(step_s, fetch_s, busy, cores, present):
    told = costs(
        step_s=step_s,
        step_cpu_s=step_s,
        fetch_s=fetch_s,
        fetch_cpu_s=busy * fetch_s,
        longest_fetch_s=fetch_s,
        worker_s=1.05 * fetch_s,
        cores=cores,
    )
    search = Search(told, own := Loading(workers=present, prefetch=2))
    tried = run(search, lambda workers: predict_s(told, workers))
    assert 1 <= len(tried) <= NUM_TRIALS
    assert len(set(tried)) == len(tried)
    assert own not in search.tried
    assert all(0 <= workers <= told.most_workers for workers in tried)
    assert search.tried[search.best] <= 1.02 * min(search.tried.values())


def test_where_many_workers_are_far_slower_than_predicted_half_of_them_are_tried():
    told = costs(step_s=0.001, step_cpu_s=0.001, fetch_s=0.023, worker_s=0.023, longest_fetch_s=0.023, cores=2)
    search = Search(told, Loading(workers=0, prefetch=2))
    # Each worker costs the cores something, which no measurement before the trials shows.
    tried = run(search, lambda workers: max(0.0255 / workers, 0.002 + 0.0001 * workers))
    assert tried[1] == tried[0] // 2
    assert 8 <= search.best.workers <= 11, tried


def test_trials_that_single_windows_cannot_order_are_rivals_and_others_are_not():
    search = Search(costs(), Loading(workers=0))
    one, two, three = (Loading(workers=workers, prefetch=2) for workers in (16, 8, 11))
    search.note(one, 0.0042)
    assert search.rivals == [one]
    search.note(two, 0.0038)
    search.note(three, 0.0030)
    assert search.rivals == [two, three]
    search.note(Loading(workers=4, prefetch=2), 0.0020)
    assert search.rivals == [Loading(workers=4, prefetch=2)]


def test_as_many_workers_as_keep_up_are_enough():
    assert best_workers(costs(fetch_s=0.1, worker_s=0.1)) == pytest.approx(11, abs=1)
    assert best_workers(costs(fetch_s=0.005, worker_s=0.005)) == 1


def test_on_two_cores_a_loader_that_computes_gets_no_more_workers_than_cores():
    told = costs(step_s=0.003, step_cpu_s=0.003, fetch_s=0.03, fetch_cpu_s=0.03, worker_s=0.03, cores=2)
    assert best_workers(told) in (2, 3)
    assert predict_s(told, 8) == pytest.approx(predict_s(told, 3), rel=0.2)


def test_on_one_core_workers_of_a_loader_that_computes_cannot_help():
    told = costs(step_s=0.01, step_cpu_s=0.01, fetch_s=0.01, fetch_cpu_s=0.01, worker_s=0.011, cores=1)
    assert best_workers(told) == 0


def test_short_passes_are_not_worth_the_start_of_many_workers():
    long, short = costs(fetch_s=0.1, worker_s=0.1), costs(fetch_s=0.1, worker_s=0.1, num_steps=4, start_s=0.3)
    assert best_workers(short) < best_workers(long)


def test_a_stream_is_read_in_one_worker_at_most():
    told = costs(is_stream=True, fetch_s=0.1, worker_s=0.1)
    search = Search(told, Loading(workers=0, prefetch=2, pin=False))
    assert run(search, lambda _: 0.1) == [1]


def test_a_search_ends_where_nothing_is_left_to_gain():
    search = Search(told := costs(), Loading(workers=0, prefetch=2))
    assert len(run(search, lambda workers: told.step_s)) == 1


def test_batches_of_uneven_length_need_more_workers():
    assert best_workers(costs(fetch_s=0.1, worker_s=0.1, fetch_spread=1.0)) > best_workers(costs(fetch_s=0.1, worker_s=0.1))


def test_workers_fetch_further_ahead_where_some_batches_take_long_and_there_is_room():
    usual = loading_with(costs(), 2, Loading(prefetch=2))
    uneven = loading_with(costs(longest_fetch_s=0.2), 2, Loading(prefetch=2))
    small = loading_with(costs(longest_fetch_s=0.2, room_bytes=1_000_000), 2, Loading(prefetch=2))
    assert (usual.prefetch, uneven.prefetch, small.prefetch) == (2, 10, 2)


def test_memory_is_pinned_on_a_gpu_only_and_stays_pinned():
    assert not loading_with(costs(), 2, Loading(pin=False)).pin
    assert loading_with(costs(on_gpu=True), 2, Loading(pin=False)).pin
    assert loading_with(costs(), 2, Loading(pin=True)).pin


def test_what_may_gain_and_what_is_clear():
    told = costs()
    assert may_gain(told, 0, step_s=0.03, wait_s=0.02)
    assert not may_gain(told, 0, step_s=0.0150, wait_s=0.0001), "a noisy machine: nobody takes the cores"
    assert may_gain(told, 4, step_s=0.0150, wait_s=0.0001), "workers may"
    assert not may_gain(told, 4, step_s=0.0103, wait_s=0.0001)
    assert is_clear(1.2, 1.1)
    assert not is_clear(1.5, 0.99)
    assert not is_clear(1.01, 1.01)
    assert dataclasses.replace(told, room_bytes=200_000).most_workers == 1
