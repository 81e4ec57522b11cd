"""When a run is said not to get on, and what is said then."""

import pytest

from lockstep.explain.rank_reports import RankReport
from lockstep.explain.stuck import limit_s, who_waits

WAITING = [["/site-packages/torch/distributed/distributed_c10d.py", 10, "all_reduce"], ["/home/me/train.py", 20, "<module>"]]


def rank(number, stack, state="running", collective=None):
    record = {
        "rank": number,
        "world_size": 4,
        "host": "node7",
        "pid": 100 + number,
        "time_s": 50.0,
        "since_s": 30.0,
        "doing": {"step": 5, "in_step": True, "activity": "in the forward pass"},
        "stack": stack,
        "collective": collective,
    }
    return RankReport(record, state, 0.0)


def test_the_missing_rank_is_named_with_what_it_does_and_where():
    text = who_waits(
        [rank(0, WAITING), rank(1, WAITING), rank(2, [["/home/me/train.py", 7, "loss"]]), rank(3, WAITING)], "run"
    )
    assert text.splitlines() == [
        "no progress for 20 s: ranks 0 to 1, 3 wait for rank 2.",
        "  rank 2 on node7 (pid 102): in the forward pass of step 5, for 20 s",
        "    /home/me/train.py:7 in loss",
        "`lockstep stacks run` shows all ranks, at any time.",
    ]


@pytest.mark.parametrize("state", ["gone", "stopped"])
def test_one_that_is_gone_or_stopped_is_missing_wherever_it_was(state):
    text = who_waits([rank(0, WAITING), rank(1, WAITING, state)], "run")
    assert "rank 0 waits for rank 1." in text


def test_nobody_is_alarmed_where_all_wait_or_the_missing_one_is_in_a_debugger():
    assert who_waits([rank(0, WAITING), rank(1, WAITING)], "run") is None
    debugged = [["/usr/lib/python3.11/bdb.py", 90, "dispatch_line"], ["/home/me/train.py", 7, "loss"]]
    assert who_waits([rank(0, WAITING), rank(1, debugged)], "run") is None


def test_it_is_said_after_10_seconds_or_5_steps_and_later_while_nobody_knows_how_long_a_step_takes():
    assert limit_s(0.1, 100) == 10
    assert limit_s(4.0, 100) == 20
    assert limit_s(0.1, 1) == 60
