"""The file of ``lockstep run --reports``: what is told of a launch, in fields."""

import json
import time

import pytest

from lockstep._base.reports import FAILED, WAITING

pytestmark = pytest.mark.timeout(60)

FAILS = """
import os
def read_depth(settings):
    return settings["depth"]
if os.environ["RANK"] == "1":
    read_depth({})
"""
STUCK = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(8):
    dist.all_reduce(torch.zeros(1))
def wait_for_licence():
    while True:
        time.sleep(1)
if dist.get_rank() == 1:
    wait_for_licence()
dist.all_reduce(torch.zeros(1))
"""


@pytest.fixture
def reports_of(start_launcher, tmp_path):
    """``reports_of(source, until)``: the reports of a launch of 2 processes until one of kind
    ``until`` is there."""

    def run(source, until):
        (tmp_path / "train.py").write_text(source)
        file = tmp_path / "reports.jsonl"
        launcher = start_launcher("--nproc-per-node", 2, "--reports", file, "train.py")
        while True:
            has_ended = launcher.poll() is not None
            lines = file.read_text().splitlines() if file.exists() else []
            reports = [json.loads(line) for line in lines]
            if any(report["kind"] == until for report in reports):
                return reports
            assert not has_ended, f"{until} was not reported: {lines}"
            time.sleep(0.1)

    return run


def test_a_failure_is_recorded_with_its_rank_exception_and_line(reports_of, tmp_path):
    [report] = reports_of(FAILS, FAILED)
    assert (report["ranks"], report["cause"]) == ([1], "KeyError")
    assert report["places"] == {"1": f"{tmp_path}/train.py:4 in read_depth"}


def test_a_rank_that_others_wait_for_is_recorded_with_its_line_and_their_call(reports_of, tmp_path):
    [report] = reports_of(STUCK, WAITING)
    assert report["ranks"] == [1]
    assert report["places"]["1"].endswith("in wait_for_licence")
    assert "all_reduce" in report["calls"]["0"]
    assert report["seconds"] >= 10


def test_a_file_that_cannot_be_written_is_refused_before_anything_starts(start_launcher, tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit(9)")
    launcher = start_launcher("--reports", "missing/reports.jsonl", "train.py")
    launcher.communicate(timeout=30)
    assert launcher.returncode == 2
