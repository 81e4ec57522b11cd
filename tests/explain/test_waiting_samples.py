"""Which rank samples of stacks show the others to wait for, and which they do not."""

import random

import pytest

from lockstep.tools.explain.script_clock import WAITING
from lockstep.tools.explain.slow_script_ranks import judge
from lockstep.tools.explain.waiting_samples import find_awaited, waits_more

SAMPLES_A_SECOND = 20
STEPS = 10
"""In a window."""


def windows(draw, waits, *, num=30, step_s=0.05, in_backward=0.0):
    """Windows of one rank. ``waits``: the share of its time for which it waits in collectives, by the window's number."""
    made = []
    for number in range(num):
        share = waits(number) if callable(waits) else waits
        window_s = STEPS * step_s
        busy_s = step_s * (1 - in_backward)
        count = int(SAMPLES_A_SECOND * window_s * (1 - in_backward) + draw.random())
        waiting = sum(draw.random() < share for _ in range(count))
        made.append(
            [number, busy_s, busy_s, busy_s, step_s * in_backward, {WAITING: waiting, "script": count - waiting}, []]
        )
    return made


def rows_of(*by_rank):
    return list(zip(*by_rank, strict=True))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_rank_that_does_not_wait_is_named_with_what_it_costs(late):
    draw = random.Random(late)
    rows = rows_of(*(windows(draw, 0.05 if rank == late else 0.6) for rank in range(3)))
    awaited = find_awaited(rows)
    assert awaited.position == late
    assert awaited.times == pytest.approx(0.95 / 0.4, rel=0.4)
    assert awaited.cost == pytest.approx(0.55, abs=0.2)


def test_it_is_named_within_50_steps_of_a_tenth_of_a_second():
    draw = random.Random(1)
    named = [
        find_awaited(rows_of(*(windows(draw, each, num=5, step_s=0.1) for each in (0.6, 0.0, 0.6)))) for _ in range(100)
    ]
    assert sum(awaited is not None and awaited.position == 1 for awaited in named) >= 98


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_nobody_is_named_where_all_wait_alike(share, num_ranks):
    draw = random.Random(num_ranks)
    for step_s in (0.005, 0.03, 0.2):
        for _ in range(100):
            assert find_awaited(rows_of(*(windows(draw, share, step_s=step_s) for _ in range(num_ranks)))) is None


def test_nobody_is_named_for_one_long_wait_or_for_one_in_every_hundred_steps():
    draw = random.Random(3)
    for period in (10, 30):
        others = lambda number: 0.97 if number % period == 4 else 0.1  # noqa: B023, E731
        for _ in range(100):
            assert find_awaited(rows_of(windows(draw, 0.1), windows(draw, others), windows(draw, others))) is None


def test_what_costs_little_is_not_worth_a_word():
    draw = random.Random(4)
    rows = rows_of(windows(draw, 0.0, step_s=5.0), windows(draw, 0.04, step_s=5.0), windows(draw, 0.04, step_s=5.0))
    assert find_awaited(rows) is None


def test_one_that_times_alone_show_is_left_to_them():
    # Rank 0 logs in every tenth step, so its usual steps are not slow; DDP's own code is seen at times.
    draw = random.Random(7)
    late, even = windows(draw, 0.01, in_backward=0.1), windows(draw, 0.02, in_backward=0.3)
    assert find_awaited(rows_of(late, even, even)) is None


@pytest.mark.parametrize("num", [5, 7, 9, 13, 19])
def test_any_number_of_windows_that_all_have_will_do(num):
    draw = random.Random(num)
    step_s = 0.12 if num < 10 else 0.06  # 6 s and more
    by_rank = [windows(draw, 0.0 if rank == 1 else 0.6, num=num, step_s=step_s) for rank in range(3)]
    assert find_awaited(rows_of(*by_rank)).position == 1


def test_the_others_may_do_nothing_but_wait():
    draw = random.Random(8)
    awaited = find_awaited(rows_of(windows(draw, 0.0), windows(draw, 1.0), windows(draw, 1.0)))
    assert awaited.position == 0
    assert awaited.times < 1000


def test_a_rank_with_a_gpu_that_is_seen_to_wait_itself_is_not_called_slow():
    draw = random.Random(9)

    def records(on_gpu, late):
        for rank in range(3):
            its = windows(draw, late if rank == 0 else 0.6, step_s=0.2)
            yield {"rank": rank, "host": "a", "world_size": 3, "steps": {"windows": its, "on_gpu": on_gpu}}

    assert judge(list(records(True, 0.4))) is None
    assert judge(list(records(False, 0.4))).rank == 0
    assert judge(list(records(True, 0.05))).rank == 0


def test_windows_without_a_sample_name_nobody():
    assert find_awaited(rows_of(*(windows(random.Random(0), 0.5, step_s=1e-9) for _ in range(2)))) is None
    assert find_awaited([]) is None


def test_time_that_is_known_to_be_waited_counts_beside_the_samples():
    # Nobody is in a collective of its own, so the times alone decide.
    draw = random.Random(5)
    late, even = windows(draw, 0.0, in_backward=0.1), windows(draw, 0.0, in_backward=0.5)
    assert find_awaited(rows_of(late, even, even)) is None
    assert waits_more(rows_of(late, even, even), 1)
    assert not waits_more(rows_of(late, even, even), 0)


def test_a_rank_that_is_long_in_collectives_is_not_taken_for_a_busy_one():
    """It waits for rank 2, in the all-reduce of a metric, and so it is late nowhere else."""
    draw = random.Random(6)
    waiting = windows(draw, 0.8, step_s=0.1)
    late = [[number, 0.05, 0.05, 0.08, 0.02, {"script": 20}, []] for number, *_ in waiting]
    awaited = find_awaited(rows_of(waiting, late, waiting))
    assert awaited.position == 1

    def record(rank, its):
        return {"rank": rank, "host": "a", "world_size": 3, "steps": {"windows": its}}

    assert judge([record(0, waiting), record(1, late), record(2, waiting)]).rank == 1
