"""Which rank of a script that knows nothing of lockstep is called slow, and which is not."""

import random

import pytest

from lockstep.tools.explain.slow_script_ranks import SlowScriptRanks, judge, newest_steps

EVEN = {"busy": 0.1, "waited": 0.04}
LATE = {"busy": 0.14, "waited": 0.001}


def record(rank, *, busy, waited, spent=None, numbers=range(1, 9), world_size=3, on_gpu=False, host=None):
    """``busy`` and ``waited``: seconds, or functions of the window's number. ``spent``: seconds in usual steps and in all, by
    activity and line."""
    windows, spent = [], {("forward", "train.py:9 in forward"): (0.8, 0.8)} if spent is None else spent
    rows = [[index, *seconds] for index, seconds in enumerate(spent.values())]
    for number in numbers:
        busy_s, waited_s = (each(number) if callable(each) else each for each in (busy, waited))
        windows.append([number, busy_s, busy_s, busy_s, waited_s, {"forward": 10}, rows])
    places = [list(place) for place in spent]
    steps = {"num_steps": 10 * max(numbers, default=0), "windows": windows, "places": places, "on_gpu": on_gpu}
    return {"rank": rank, "host": host or f"node{rank}", "world_size": world_size, "steps": steps}


SAME = ("forward", "train.py:9 in forward")
ITS_OWN = ("script", "train.py:7 in augment")


def test_a_slow_rank_is_named_with_its_host_activity_line_and_cost():
    late = record(2, **LATE, spent={SAME: (0.8, 0.8), ITS_OWN: (0.6, 0.6)})
    found = judge([record(0, **EVEN), record(1, **EVEN), late])
    assert (found.rank, found.host, found.activity, found.step) == (2, "node2", "script", 80)
    assert found.times == pytest.approx(1.4)
    assert found.cost == pytest.approx(0.039 / 0.141)
    assert found.describe().startswith(
        "rank 2 on node2 is slow, up to step 80: it is busy 1.4 times as long as the other ranks, which wait for it for 28% of "
        "the time. It loses that in the script's other code in the loop, mostly at train.py:7 in augment. Look at "
    )


def test_a_rank_that_was_never_seen_at_work_is_named_without_an_activity():
    records = [record(rank, **(LATE if rank == 1 else EVEN), spent={}) for rank in range(3)]
    assert judge(records).describe().endswith("of the time.")
    records = [record(rank, **(LATE if rank == 1 else EVEN)) for rank in range(3)]
    assert judge(records).activity == "", "where it was seen as often as the others, that does not tell"


def test_the_line_is_where_it_spends_more_time_than_the_others_not_where_it_spends_most():
    both = ("script", "train.py:20 in <module>")
    rows = [{both: (0.9, 0.9)}, {both: (1.0, 1.0)}, {both: (0.95, 0.95), ITS_OWN: (0.4, 0.4)}]
    records = [record(rank, **(LATE if rank == 2 else EVEN), spent=spent) for rank, spent in enumerate(rows)]
    assert judge(records).location == "train.py:7 in augment"


def test_the_line_is_in_the_function_that_costs_most_altogether():
    parts = {("script", f"train.py:{line} in augment"): (0.1, 0.1) for line in range(30, 36)}
    late = record(2, **LATE, spent={SAME: (0.8, 0.8), ("script", "train.py:50 in draw"): (0.3, 0.3), **parts})
    assert judge([record(0, **EVEN), record(1, **EVEN), late]).location.endswith(" in augment")


def test_the_line_is_of_usual_steps_not_of_what_came_once_in_one_of_them():
    late = record(2, **LATE, spent={("script", "train.py:3 in load_index"): (0.0, 4.0), ITS_OWN: (0.4, 0.4)})
    assert judge([record(0, **EVEN), record(1, **EVEN), late]).location == "train.py:7 in augment"


def test_the_advice_for_a_rank_beside_faster_ones_is_not_about_the_machine():
    for hosts, is_about in ((["a", "b", "b"], False), (["b", "b", "a"], True)):
        records = [
            record(rank, **(LATE if rank == 2 else EVEN), spent={SAME: (0.8 + rank,) * 2}, host=host)
            for rank, host in enumerate(hosts)
        ]
        assert ("clock rate" in judge(records).describe()) is is_about


@pytest.mark.parametrize("step_s", [0.01, 0.1, 3.0])
def test_it_is_named_within_40_steps_or_a_second(step_s):
    for num_windows in range(1, 200):
        numbers = range(1, num_windows + 1)
        even, late = {"busy": 0.5 * step_s, "waited": 0.5 * step_s}, {"busy": step_s, "waited": 0.0}
        if judge([record(rank, **(late if rank == 0 else even), numbers=numbers) for rank in range(3)]):
            break
    assert num_windows in (max(3, round(0.1 / step_s)), 11)  # a sum of floats


def test_each_cause_is_told_once_and_another_one_of_the_same_rank_when_it_stays():
    even = [record(rank, **EVEN) for rank in range(3)]
    late = [*even[:2], record(2, **LATE, spent={SAME: (2.0, 2.0)})]
    other = [*even[:2], record(2, **LATE, spent={ITS_OWN: (0.6, 0.6)})]
    ranks = SlowScriptRanks()
    told = [
        ranks.look(late if look < 50 or 60 < look < 100 else other if look in (110, 130) or look > 200 else even)
        for look in range(250)
    ]
    assert [(look, found.activity) for look, found in enumerate(told) if found] == [(1, "forward"), (210, "script")]


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
    assert num_windows in (16, 17)


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


def test_a_rank_that_evaluates_once_is_not_slow_for_a_difference_that_costs_little_otherwise():
    def once(usual_s, number_s):
        return lambda number: number_s if number == 7 else usual_s

    waiting = {"busy": 0.1, "waited": once(0.5, 1.7)}
    rows = [{"busy": once(0.125, 1.3), "waited": once(0.48, 0.48)}, waiting, waiting]
    assert judge([record(rank, **row) for rank, row in enumerate(rows)]) is None


def test_a_long_wait_does_not_make_brief_steps_suffice():
    waiting = {"busy": 0.004, "waited": lambda number: 1.6 if number == 1 else 0.003}
    rows = [{"busy": 0.007, "waited": 0.0001}, waiting, waiting]
    assert judge([record(rank, **row) for rank, row in enumerate(rows)]) is None


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
