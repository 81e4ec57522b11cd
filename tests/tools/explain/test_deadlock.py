"""Which ranks can never go on, and that a run which waits for them ends."""

import json
import re
import signal
import textwrap
import time
from pathlib import Path

import pytest

from lockstep._base.reports import MISMATCH
from lockstep._base.reports import WAITING as WAITING_KIND
from lockstep._tools.explain.deadlock import deadlocked
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.stuck import who_waits

pytestmark = pytest.mark.timeout(100)

C10D = "/site-packages/torch/distributed/distributed_c10d.py"
WAITING = [[C10D, 10, "all_reduce"], ["/home/me/train.py", 20, "<module>"]]
WORKING = [["/home/me/train.py", 7, "evaluate"]]


def rank(number, stack=WAITING, at=None, begun=None, state="running", size=2, since_s=30.0, recent=(), doing=None):
    """A rank, ``at``: the group and number of the collective in which it waits."""
    collective = None
    if at is not None:
        group, count, name = at
        members = list(range(size))
        collective = {"text": f"{name} number {count}", "number": count, "name": name, "group": group, "members": members}
    record = {
        "rank": number,
        "world_size": size,
        "time_s": 50.0,
        "since_s": since_s,
        "doing": doing or {"step": 5, "activity": "in the script", "num_done": 9},
        "stack": stack,
        "collective": collective,
        "begun": begun or {},
        "recent": recent,
    }
    return RankReport(record, state, 0.0)


def in_group(number, group, count, begun, **more):
    return rank(number, at=(group, count, "all_reduce"), begun=begun, **more)


def test_ranks_that_wait_in_two_groups_for_each_other_never_go_on():
    first, second = in_group(0, "1", 3, {"1": 3, "2": 2}), in_group(1, "2", 3, {"1": 2, "2": 3})
    assert deadlocked([first, second]) == {0, 1}
    assert deadlocked([in_group(0, "1", 1, {"1": 1}), in_group(1, "2", 1, {"2": 1})]) == {
        0,
        1,
    }  # of which one is not begun yet


def test_a_rank_that_waits_for_one_that_has_ended_never_goes_on():
    waits = in_group(0, "0", 7, {"0": 7})
    for state in ("finished", "gone"):
        assert deadlocked([waits, rank(1, WORKING, begun={"0": 6}, state=state)]) == {0}
    # it had no part in it any more
    assert deadlocked([waits, rank(1, WORKING, begun={"0": 7}, state="finished")]) == set()


def test_messages_to_single_ranks_are_no_collectives_that_a_rank_has_begun():
    waits = in_group(0, "0", 7, {"0": 30})
    behind = in_group(1, "0", 6, {"0": 29}, recent=[[6, "all_reduce", "0"]])
    ahead = in_group(1, "1", 4, {"0": 29, "1": 4}, recent=[[7, "all_reduce", "0"], [4, "all_reduce", "1"]])
    never = in_group(1, "1", 4, {"0": 29, "1": 4}, recent=[[6, "all_reduce", "0"], [4, "all_reduce", "1"]])
    late = in_group(0, "0", 7, {"0": 30, "1": 3}, recent=[[7, "all_reduce", "0"], [3, "all_reduce", "1"]])
    assert deadlocked([waits, behind]) == set(), "6 lacks nobody"
    assert deadlocked([late, ahead]) == set()
    assert deadlocked([late, never]) == {0, 1}


def test_ranks_that_have_called_two_collectives_in_the_same_place_never_go_on():
    one = rank(0, at=("0", 7, "barrier"), begun={"0": 7}, recent=[[7, "barrier", "0"]])
    other = rank(1, at=("0", 7, "all_reduce"), begun={"0": 7}, recent=[[7, "all_reduce", "0"]])
    assert deadlocked([one, other]) == {0, 1}


def test_so_do_those_that_have_done_so_in_a_group_of_some_ranks():
    one = rank(0, at=("3", 2, "barrier"), begun={"3": 2}, recent=[[2, "barrier", "3"]])
    other = rank(1, at=("3", 2, "all_reduce"), begun={"3": 2}, recent=[[2, "all_reduce", "3"]])
    elsewhere = rank(1, at=("4", 2, "all_reduce"), begun={"3": 2, "4": 2}, recent=[[2, "all_reduce", "4"]])
    assert deadlocked([one, other]) == {0, 1}
    assert deadlocked([one, elsewhere]) == set()


def test_who_waits_for_a_rank_in_a_deadlock_is_in_one():
    ranks = [
        in_group(0, "1", 3, {"0": 9, "1": 3, "2": 2}, size=3),
        in_group(1, "2", 3, {"0": 9, "1": 2, "2": 3}, size=3),
        in_group(2, "0", 10, {"0": 10, "1": 3, "2": 3}, size=3),
    ]
    assert deadlocked(ranks) == {0, 1, 2}


@pytest.mark.parametrize("state", ["running", "late", "stopped"])
def test_a_rank_that_works_loads_is_stopped_or_silent_may_yet_go_on_and_so_may_all_that_wait_for_it(state):
    others = [in_group(0, "0", 7, {"0": 7}, size=3), in_group(2, "0", 7, {"0": 7}, size=3)]
    assert deadlocked([*others, rank(1, WORKING, begun={"0": 6}, state=state, size=3, since_s=0.0)]) == set()
    pending = rank(1, WORKING, at=("1", 2, "all_reduce"), begun={"0": 6, "1": 2}, state=state, size=3, since_s=0.0)
    assert deadlocked([*others, pending]) == set(), "one that has begun a collective in the background computes meanwhile"


def test_ranks_on_their_way_through_one_collective_after_the_other_are_in_no_deadlock():
    assert deadlocked([in_group(0, "0", 7, {"0": 7}), in_group(1, "0", 6, {"0": 6})]) == set(), (
        "6 lacks nobody: a slow network"
    )
    assert deadlocked([in_group(0, "0", 7, {"0": 7}), in_group(1, "0", 7, {"0": 7})]) == set()


def test_nothing_is_concluded_of_ranks_that_have_just_moved_nor_where_one_is_unknown():
    assert deadlocked([in_group(0, "1", 3, {"1": 3, "2": 2}), in_group(1, "2", 3, {"1": 2, "2": 3}, since_s=45.0)]) == set()
    assert deadlocked([in_group(0, "1", 3, {"1": 3, "2": 2}, size=3), in_group(1, "2", 3, {"1": 2}, size=3)]) == set()


def test_a_rank_whose_program_is_over_is_named_as_such_even_in_a_collective_of_its_own():
    others, same = (in_group(number, "0", 7, {"0": 7}) for number in range(2))
    over = rank(1, [[C10D, 10, "all_gather"]], at=("0", 7, "all_gather"), begun={"0": 7})
    for report in (over, same):
        report.record.update(ending={"how": "ended", "since_s": 20.0, "holders": []}, host="here", pid=1)
    report = who_waits([others, over])
    assert (report.kind, report.ranks, report.cause) == (WAITING_KIND, (1,), "ending")
    assert who_waits([others, same]) is None, "the same call, at the end of one's program and in the other's"


def test_all_in_recv_never_go_on_while_one_of_them_might_be_sent_to_by_a_rank_that_works():
    receiving = [[C10D, 10, "recv"], ["/home/me/train.py", 30, "fetch"]]
    assert deadlocked([rank(0, receiving), rank(1, receiving)]) == {0, 1}
    assert deadlocked([rank(0, receiving), rank(1, WORKING)]) == set()


BARRIER = """
    import sys, time, torch, lockstep
    team = lockstep.join(run_dir="run", shards=2)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(240, 4), torch.randn(240, 1))
    model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=6))
    for batch in loader:
        for x, y in batch.shards:
            team.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if team.step == 12 and team.rank == 1:
            {fault}
"""


@pytest.mark.long
def test_a_run_in_a_deadlock_ends_with_the_report_as_its_error_and_the_checkpoint_stays(run_here, tmp_path):
    reports = str(tmp_path / "reports")
    script = BARRIER.replace("    model =", "    group = torch.distributed.new_group([0, 1])\n    model =")
    # while rank 0 begins the next step
    fault = "torch.distributed.all_reduce(torch.ones(1), group=group)"
    done = run_here(script.format(fault=fault), "--nproc", "2", "--checkpoint-every", "5", "--reports", reports)
    assert done.returncode == 1
    [report, *_] = map(json.loads, Path(reports).read_text().splitlines())
    assert report["kind"] == MISMATCH
    assert report["places"]["1"].endswith("script.py:15 in <module>")
    assert "deadlock" in done.stderr
    assert re.search(r"newest checkpoint .*step \d+", done.stderr)
    assert list(tmp_path.glob("**/checkpoints/step-*"))


@pytest.mark.long
def test_a_run_that_is_asked_to_stop_in_a_step_that_cannot_be_finished_ends_and_says_so(
    start_launcher, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(BARRIER.format(fault="time.sleep(1000)")))
    with (tmp_path / "errors").open("w") as errors:
        launcher = start_launcher("--nproc", "2", "--checkpoint-every", "5", "train.py", stdout=errors, stderr=errors)
    said = (tmp_path / "errors").read_text
    deadline = time.monotonic() + 60
    while "no progress" not in said():
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=25) == 128 + signal.SIGTERM, said()  # it would be 600 s
    assert re.search(r"step 13 .* newest checkpoint .*step \d+", said()), said()


# Three ranks. In the second of two steps something differs, in groups of two of them.
GROUPS = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, x = dist.get_rank(), torch.ones(4)
    unused, first, second = dist.new_group([0, 2]), dist.new_group([0, 1]), dist.new_group([0, 1])
    for _ in range(20):
        dist.all_reduce(x)
    if rank < 2:
        {calls}
    dist.barrier()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            "for group in (first, second) if rank else (second, first): dist.all_reduce(x, group=group)",
            [
                "rank 0: all_reduce number 1 .* group 3 .*:9",
                "rank 1: all_reduce number 1 .* group 2 .*:9",
            ],
        ),
        (
            "rank or dist.all_reduce(x, group=first)",
            ["rank 0: all_reduce number 1 .* 2 .ranks 0 and 1.*:9", "ranks 1 and 2: .*barrier.*:10"],
        ),
    ],
    ids=["opposite orders", "never entered"],
)
def test_ranks_that_part_in_groups_are_named_with_group_and_line(run_here, calls, said):
    done = run_here(GROUPS.format(calls=calls), "--nproc", "3")
    assert done.returncode == 1
    error = done.stderr[done.stderr.rindex("error:") :]
    for each in said:
        assert re.search(each, error), error
