"""Ranks that part: some leave a loop of a lockstep script, or come alone to what all must do, and
others go on."""

import json

import pytest

from lockstep._base.reports import FAILED, PARTED
from lockstep._tools.explain.parted import left_apart, parted
from lockstep._tools.explain.rank_reports import RankReport

pytestmark = pytest.mark.timeout(60)

TRAIN = """
import os, sys, time, torch, lockstep
HOW, THEN = os.environ["HOW"], os.environ["THEN"]
team = lockstep.join(shards=3, seed=1)
odd = team.rank in map(int, os.environ["ODD"].split(","))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(36, 4), torch.randn(36, 1))
plain = torch.utils.data.DataLoader(data, 6)
model, optimizer, loader = team.prepare(model, optimizer, plain)
def evaluate():
    with team.evaluate(model, plain) as evaluation:
        for x, y in evaluation.shards:
            evaluation.add(error=(model(x) - y).square())
def train():
    for batch in loader:
        if HOW == "continue" and odd and team.step == 3:
            continue
        for x, y in batch.shards:
            loss = (model(x) - y).square().mean()
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if team.step != 3 or not (odd or HOW == "all"):
            continue
        if HOW == "break":
            break
        if HOW == "return":
            return
        if HOW == "exit":
            sys.exit(0)
        if HOW == "error":
            raise ValueError("early")
        if HOW == "evaluate":
            evaluate()
        if HOW == "all":
            time.sleep(1.5 if odd else 0.0)
            break
for epoch in team.epochs(2):
    try:
        train()
    except ValueError:
        pass
    if THEN == "evaluate":
        evaluate()
    if THEN == "gather":
        team.all_gather(torch.zeros(5))
    if THEN == "own":
        torch.distributed.all_reduce(torch.zeros(5))
team.save(model.state_dict(), "model.pt")
"""


def line_of(text):
    return TRAIN.splitlines().index(text) + 1


@pytest.fixture
def reports_of(run_here, tmp_path):
    """``reports_of(how, then, nproc, odd)``: the status of a launch, and its reports but for
    failures."""

    def run(how, then, nproc, odd):
        file = tmp_path / "reports.jsonl"
        env = {"HOW": how, "THEN": then, "ODD": odd}
        ended = run_here(TRAIN, "--nproc-per-node", nproc, "--reports", file, env=env)
        reports = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return ended.returncode, [report for report in reports if report["kind"] != FAILED]

    return run


@pytest.mark.parametrize(
    ("how", "then", "nproc", "odd", "cause", "line"),
    [
        ("break", "evaluate", 2, "1", "break", "            break"),
        pytest.param("return", "nothing", 3, "0,2", "return", "            return", marks=pytest.mark.quick),
        pytest.param("exit", "nothing", 2, "1", "sys.exit", "            sys.exit(0)", marks=pytest.mark.quick),
        ("error", "gather", 2, "0", "exception", '            raise ValueError("early")'),
        ("continue", "nothing", 3, "1", "continue", "    for batch in loader:"),
        ("evaluate", "nothing", 2, "0", "", "    with team.evaluate(model, plain) as evaluation:"),
    ],
)
def test_the_ranks_that_leave_a_loop_apart_are_named_at_once_with_how_and_where(
    reports_of, how, then, nproc, odd, cause, line
):
    status, [report] = reports_of(how, then, nproc, odd)
    ranks = list(map(int, odd.split(",")))
    assert (status, report["kind"], report["ranks"], report["cause"]) == (1, PARTED, ranks, cause)
    assert {f":{line_of(line)} in " in report["places"][str(rank)] for rank in ranks} == {True}
    others = [at for rank, at in report["places"].items() if int(rank) not in ranks]
    lines = [int(at.partition(".py:")[2].partition(" ")[0]) for at in others]
    assert lines
    assert all(line_of("    for batch in loader:") <= at <= line_of("        optimizer.step()") for at in lines)
    assert report["seconds"] < 5


def test_ranks_that_leave_together_though_not_at_the_same_time_are_left_in_peace(reports_of):
    assert reports_of("all", "evaluate", 2, "1") == (0, [])


def rank(number, *, stack=(["/work/lockstep/_loop/meeting.py", 1, "meet"],), **doing):
    at = {"step": 3, "phase": 1, "in_step": False, "in_phase": False, "left": None, "meeting": {"number": 1, "call": ""}}
    record = {"rank": number, "world_size": 2, "time_s": 9.0, "since_s": 1.0, "collective": None, "stack": list(stack)}
    return RankReport({**record, "doing": {**at, **doing}}, "running", 0.0)


def at_meeting(number, call="the end of the run", meeting=1, **doing):
    return rank(number, meeting={"number": meeting, "call": call}, **doing)


LEFT = {"step": 3, "cause": "break", "place": "train.py:9 in <module>", "next_step": 3, "next_phase": 1}


@pytest.mark.parametrize(
    ("waiting", "other", "ranks"),
    [
        (
            at_meeting(0, left=LEFT),
            rank(1, step=4, phase=0, in_step=True, in_phase=True, meeting={"number": 0, "call": ""}),
            (0,),
        ),
        (
            at_meeting(0, left=LEFT),
            rank(1, step=3, phase=1, in_step=True, in_phase=True, meeting={"number": 0, "call": ""}),
            (0,),
        ),
        (at_meeting(0), at_meeting(1, call="team.evaluate()"), (0, 1)),
        # one that may yet come
        (
            at_meeting(0, left=LEFT),
            rank(1, step=3, phase=0, in_step=True, in_phase=True, meeting={"number": 0, "call": ""}),
            None,
        ),
        (at_meeting(0, left=LEFT), rank(1, step=4, phase=0, in_step=True, meeting={"number": 0, "call": ""}), None),
        # its black box is older than the meeting from which it goes on, or it is at the meeting
        # before
        (
            at_meeting(0, meeting=2),
            rank(1, step=4, phase=0, in_step=True, in_phase=True, meeting={"number": 2, "call": ""}),
            None,
        ),
        (at_meeting(0, meeting=2), at_meeting(1, meeting=1), None),
        (at_meeting(0), at_meeting(1), None),
    ],
)
def test_ranks_have_parted_only_where_none_of_them_can_ever_come_to_the_other(waiting, other, ranks):
    report = parted([waiting, other], 9.0)
    assert (report and report.ranks) == ranks
    report = parted([waiting, other], 0.5)
    assert (report and report.ranks) == ranks, "what is certain needs no time to pass"


def test_a_rank_that_waits_in_a_collective_of_its_own_behind_its_loop_is_said_to_have_left_it():
    waits = ["/site-packages/torch/distributed/distributed_c10d.py", 10, "all_reduce"]
    left = rank(1, stack=[waits], left=LEFT)
    stays = rank(0, stack=[waits], step=4, phase=0, in_step=True, in_phase=True)
    report = left_apart([stays, left], 10.0)
    assert report is not None
    assert (report.kind, report.ranks, report.cause) == (PARTED, (1,), "break")
    assert left_apart([stays, rank(1, stack=[waits])], 10.0) is None, "it has not left one"
