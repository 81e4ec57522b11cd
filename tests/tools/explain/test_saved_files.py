"""A file that more than one rank saves is told of, once, with the lines; one for each rank is
not."""

import json

import pytest

from lockstep._base.reports import SAME_FILE

pytestmark = pytest.mark.timeout(60)

SAVES = """
import os, pickle, sys, tempfile, threading, time
import torch
rank = os.environ["RANK"]
def save(path):
    torch.save({"weights": torch.ones(2)}, path)
assert pickle.loads(pickle.dumps(torch.save)) is torch.save
save(tempfile.TemporaryFile())
save(f"state-{rank}.pt")
if rank == "0":
    save("of-rank-0.pt")
if "in turns" in sys.argv:
    time.sleep(3 * int(rank))
for path in sys.argv[1:]:
    with open(path, "wb") as file:
        torch.save(torch.ones(2), file)
"""


@pytest.fixture
def reports_of(start_launcher, tmp_path):
    def run(*args):
        (tmp_path / "train.py").write_text(SAVES)
        file = tmp_path / "reports.jsonl"
        launcher = start_launcher("--nproc-per-node", 2, "--reports", file, "train.py", *args)
        _, stderr = launcher.communicate(timeout=50)
        assert launcher.returncode == 0, stderr
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    return run


def test_a_file_that_two_ranks_save_is_told_of_once_with_the_line(reports_of, tmp_path):
    [report] = reports_of("model.pt", "other.pt")
    assert (report["kind"], report["ranks"]) == (SAME_FILE, [0, 1])
    assert set(report["places"].values()) == {f"{tmp_path}/train.py:16 in <module>"}


@pytest.mark.long
def test_one_that_ranks_save_in_turns_is_not(reports_of):
    assert reports_of("in turns") == []


def test_files_of_single_ranks_and_devices_are_not(reports_of):
    assert reports_of("/dev/null") == []
