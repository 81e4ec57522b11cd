"""Ranks of one launch that train, and never meet, are told of; those that meet, or do not train,
are not."""

import json

import pytest

from lockstep._base.reports import ALONE
from lockstep._tools.explain.launching import alone

pytestmark = pytest.mark.timeout(60)

TRAIN = """
import os, sys, time, torch
def train(model, seconds):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    end = time.monotonic() + seconds
    while True:
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()
        if time.monotonic() > end:
            break
        time.sleep(0.05)
"""
APART = "train(torch.nn.Linear(2, 1), 0.2)"
GROUP = "torch.distributed.init_process_group('gloo')\n"
DDP = f"{GROUP}train(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1)), 0.2)\n"


@pytest.fixture
def told(run_here, tmp_path):
    """What a launch of two processes tells of ranks that are alone, and when each report was
    made."""

    def run(source, *, status=0, env=None):
        file = tmp_path / "reports.jsonl"
        file.unlink(missing_ok=True)
        done = run_here(TRAIN + source, "--nproc-per-node", "2", "--reports", str(file), env=env)
        assert done.returncode == status, done.stderr
        reports = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [report for report in reports if report["kind"] == ALONE]

    return run


@pytest.mark.parametrize("begin", ["", GROUP])
def test_ranks_that_have_trained_and_never_met_are_told_of_at_their_end(told, begin):
    [report] = told(begin + APART)
    assert (report["ranks"], report["cause"]) == ([0, 1], "")


@pytest.mark.parametrize(
    "source",
    [
        DDP,
        f"{DDP}torch.distributed.destroy_process_group()",
        f"{APART}\n{GROUP}torch.distributed.barrier()",
        f"import torch.distributed as dist\n{GROUP}time.sleep(0.7)\nvalue = torch.ones(2)\n"
        f"dist.recv(value, 0) if dist.get_rank() else dist.send(value, 1)\n{APART}",
        "open(os.environ['RANK'], 'w').write('no optimizer')",
        f"if os.environ['RANK'] == '0':\n    {APART}",
        "import lockstep\nteam = lockstep.join(checkpoint_every='off')\n" + APART,
    ],
    ids=["DDP", "DDP, left", "met last", "messages", "without an optimizer", "one trains", "joined"],
)
def test_ranks_that_meet_or_do_not_all_train_are_not(told, source):
    assert told(source) == []


def test_nor_are_those_of_a_launch_that_fails(told):
    assert told(f"{APART}\nif os.environ['RANK'] == '1':\n    raise SystemExit(3)", status=3) == []


def test_ranks_that_have_not_met_in_time_are_told_of_while_they_train(told, tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "MEET_S", 1.0)
    [report] = told("train(torch.nn.Linear(2, 1), 5.0)\nopen('over', 'w').close()\n")
    assert report["ranks"] == [0, 1]
    assert report["time_s"] < (tmp_path / "over").stat().st_mtime


@pytest.mark.long
def test_accelerate_on_cpus_is_told_with_the_setting_that_makes_them_one(told):
    source = (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "model = accelerator.prepare(torch.nn.Linear(2, 1))\ntrain(model, 0.2)\n"
    )
    [report] = told(source)
    assert (report["ranks"], report["cause"]) == ([0, 1], "accelerate")
    assert "ACCELERATE_USE_CPU=1" in report["text"]
    assert told(source, env={"ACCELERATE_USE_CPU": "1"}) == []
