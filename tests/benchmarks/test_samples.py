"""What happens to samples: lockstep's column is right in every row, and cells are counted from
notes as they should be."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def rows_of(*options, timeout):
    command = [sys.executable, str(BENCHMARKS / "samples.py"), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["benchmark"], result["goal_met"], result["errors"]) == ("samples", True, {})
    return result["rows"]


@pytest.mark.longest
@pytest.mark.timeout(330)
def test_a_killed_run_of_lockstep_resumes_with_each_sample_once():
    rows = rows_of("--quick", timeout=300)
    assert [columns["lockstep"] for columns in rows.values()] == ["0 / 0", "24"]


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("column", ["lockstep", "Trainer + lockstep"])
def test_lockstep_is_right_in_every_row(column):
    rows = rows_of("--peers", column, timeout=900)
    assert len(rows) == 15
    assert all(columns[column] == columns["right"] for columns in rows.values()), rows


@pytest.fixture
def samples(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _samples

    return _samples


@pytest.fixture
def job(samples, tmp_path, monkeypatch):
    """Of two launches: the first has taken two steps on each of two ranks, and only the first step
    was saved."""
    job = samples.Job(samples.PEERS[-1], "train", tmp_path)
    monkeypatch.setattr(job, "_launches", 2)
    (tmp_path / "notes").mkdir()
    lines = {
        "0-0-100": [(1, [0, 1]), (2, [4, 5])],
        "0-1-101": [(1, [2, 3]), (2, [6, 7])],
        "1-0-102": [(2, [4, 5, 5, 6])],
    }
    for name, steps in lines.items():
        notes = [json.dumps({"what": "trained", "step": step, "epoch": 0, "numbers": seen}) for step, seen in steps]
        (tmp_path / "notes" / f"{name}.jsonl").write_text("\n".join(notes) + "\n")
    return job


def test_a_step_that_was_lost_and_repeated_does_not_count_twice(job):
    assert job.uses() == Counter({0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 2, 6: 1})
    assert job.lost() == 4
    assert job.batches(epoch=0) == [{0, 1, 2, 3}, {4, 5, 6}]


def test_a_duplicate_changes_the_area_under_the_curve(samples):
    import _references

    once = Counter(range(99))
    assert 0.5 < _references.roc_auc(once) < 1
    assert _references.roc_auc(once) != _references.roc_auc(once + Counter([0]))
