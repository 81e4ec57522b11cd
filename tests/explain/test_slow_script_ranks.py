"""Which rank of a script that knows nothing of lockstep is called slow, and which is not."""

import random

import pytest

from lockstep.explain.slow_script_ranks import SlowScriptRanks, judge, newest_steps

EVEN = {"busy": 0.1, "waited": 0.04}
LATE = {"busy": 0.14, "waited": 0.001}


def record(rank, *, busy, waited, seen=None, numbers=range(1, 9), world_size=3, places=None, on_gpu=False):
    """``busy`` and ``waited``: seconds, or functions of the window's number."""
    windows = []
    for number in numbers:
        busy_s, waited_s = (each(number) if callable(each) else each for each in (busy, waited))
        windows.append([number, busy_s, busy_s, busy_s, waited_s, seen or {"forward": 8, "script": 2}])
    steps = {"num_steps": 10 * max(numbers, default=0), "windows": windows, "places": places or {}, "on_gpu": on_gpu}
    return {"rank": rank, "host": f"node{rank}", "world_size": world_size, "steps": steps}


def test_a_slow_rank_is_named_with_its_host_activity_line_and_cost():
    seen = {"forward": 8, "script": 6}
    late = record(2, **LATE, seen=seen, places={"script": "train.py:7 in augment", "forward": "train.py:9 in forward"})
    found = judge([record(0, **EVEN), record(1, **EVEN), late])
    assert (found.rank, found.host, found.activity, found.step) == (2, "node2", "script", 80)
    assert found.times == pytest.approx(1.4)
    assert found.cost == pytest.approx(0.039 / 0.141)
    assert found.describe().startswith(
        "rank 2 on node2 is slow, up to step 80: it is busy 1.4 times as long as the other ranks, which wait for it for 28% of "
        "the time. It loses that in the script's other code in the loop, mostly at train.py:7 in augment. Look at "
    )


def test_a_rank_that_was_never_seen_at_work_is_named_without_an_activity():
    records = [record(rank, **(LATE if rank == 1 else EVEN), seen={"nothing": 0}) for rank in range(3)]
    assert judge(records).describe().endswith("of the time.")


@pytest.mark.parametrize("step_s", [0.01, 0.1, 3.0])
def test_it_is_named_within_40_steps_or_a_second(step_s):
    for num_windows in range(1, 200):
        numbers = range(1, num_windows + 1)
        even, late = {"busy": 0.5 * step_s, "waited": 0.5 * step_s}, {"busy": step_s, "waited": 0.0}
        if judge([record(rank, **(late if rank == 0 else even), numbers=numbers) for rank in range(3)]):
            break
    assert num_windows in (max(3, round(0.1 / step_s)), 11)  # a sum of floats


def test_each_case_is_told_once_and_again_when_it_comes_back_after_long():
    even, late = [record(rank, **EVEN) for rank in range(3)], [record(0, **EVEN), record(1, **EVEN), record(2, **LATE)]
    ranks = SlowScriptRanks()
    told = [ranks.look(late if look < 50 or 60 < look < 100 or look > 200 else even) for look in range(250)]
    assert [look for look, found in enumerate(told) if found] == [0, 201]


NOBODY = {
    "a difference under 20 %": [EVEN, EVEN, {"busy": 0.115, "waited": 0.02}],
    "a rank that nobody waits for": [EVEN, EVEN, {"busy": 0.14, "waited": 0.04}],
    "what costs little": [{"busy": 0.01, "waited": 0.3}, {"busy": 0.01, "waited": 0.3}, {"busy": 0.02, "waited": 0.299}],
    "one long step": [EVEN, EVEN, {"busy": lambda number: 9.0 if number == 8 else 0.1, "waited": 0.04}],
}


@pytest.mark.parametrize("rows", NOBODY.values(), ids=NOBODY)
def test_nobody_is_called_slow_for(rows):
    assert judge([record(rank, **row) for rank, row in enumerate(rows)]) is None


def test_a_rank_that_logs_while_its_gpu_works_is_not_called_slow():
    # Of steps of 100 ms on the GPU the script launches all in 30 ms, and then waits in scaler.step(); rank 0 logs for 10 ms.
    rows = [{"busy": 0.04, "waited": 0.06}, *[{"busy": 0.03, "waited": 0.07}] * 2]
    assert judge([record(rank, **row, on_gpu=True) for rank, row in enumerate(rows)]) is None
    assert judge([record(rank, **row) for rank, row in enumerate(rows)]).rank == 0  # without a GPU it waits for the others


def test_a_rank_with_a_gpu_that_hardly_waits_is_called_slow():
    assert judge([record(rank, **(LATE if rank == 1 else EVEN), on_gpu=True) for rank in range(3)]).rank == 1


def test_a_rank_that_waits_most_of_the_time_itself_is_judged_by_four_seconds():
    # Of steps of 25 ms all wait for more than half, since the machine is short of cores.
    even, late = {"busy": 0.004, "waited": 0.021}, {"busy": 0.007, "waited": 0.018}
    for num_windows in range(1, 30):
        numbers = range(1, num_windows + 1)
        if judge([record(rank, **(late if rank == 0 else even), numbers=numbers) for rank in range(3)]):
            break
    assert num_windows == 16


def test_how_long_steps_are_seen_does_not_count_what_comes_in_some_only():
    def records(num_windows):
        for rank in range(3):
            made = record(rank, **(LATE if rank == 1 else EVEN), numbers=range(1, num_windows + 1))
            for window in made["steps"]["windows"]:
                window[1:5] = [part / 20 for part in window[1:5]]
                window[3] += 0.02  # evaluations
            yield made

    assert judge(list(records(10))) is None
    assert judge(list(records(20))).rank == 1


@pytest.mark.parametrize("step_s", [0.02, 0.1, 0.5, 3.0])
def test_what_is_sent_suffices_where_it_is_older_for_one_rank_than_for_another(step_s):
    numbers, rows = range(1, 65), [{"busy": 0.5 * step_s, "waited": 0.5 * step_s}] * 2 + [{"busy": step_s, "waited": 0.0}]
    older = range(1, 65 - round(2.5 / (10 * step_s)))
    records = [record(rank, **row, numbers=older if rank == 0 else numbers) for rank, row in enumerate(rows)]
    sent = [{**each, "steps": newest_steps(each["steps"])} for each in records]
    assert all(len(each["steps"]["windows"]) <= 20 for each in sent)
    assert judge(sent).rank == 2


def test_nobody_is_called_slow_while_ranks_are_missing_or_have_no_steps():
    late = record(2, **LATE)
    assert judge([record(0, **EVEN), late]) is None
    assert judge([record(0, **EVEN), {**record(1, **EVEN), "steps": None}, late]) is None
    assert judge([record(0, **EVEN), record(1, **EVEN, numbers=range(0)), late]) is None
    assert judge([record(0, **EVEN), record(1, **EVEN, numbers=range(20, 30)), late]) is None
    assert judge([record(0, **LATE, world_size=1)]) is None


def test_what_is_stolen_at_random_makes_nobody_slow():
    draw = random.Random(1)

    def busy(_):
        return 0.1 * draw.choice((1, 1, 1, 5))

    for _ in range(300):
        assert judge([record(rank, busy=busy, waited=0.1) for rank in range(3)]) is None
