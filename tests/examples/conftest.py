"""These tests run functions in several processes (see ``crew``), and examples on one process and on
two."""

import hashlib
import re
from pathlib import Path

import pytest
from crew import crew
from launchers import nursery, python_here, start_cold, start_launcher, warm_trials
from warm import run_here

__all__ = ["crew", "nursery", "python_here", "run_here", "start_cold", "start_launcher", "warm_trials"]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def examples(monkeypatch):
    """The directory of the examples, from which they can be imported."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return EXAMPLES


@pytest.fixture
def told_on_one_and_two(run_here, tmp_path):
    """Run an example on 1 process and on 2: what it tells and leaves must be the same to the bit.

    Returns:
        The lines that it told of its epochs, and the directory of the run of two.
    """

    def run(name, *args):
        told, left = [], []
        for nproc in ("1", "2"):
            run_dir = tmp_path / f"on-{nproc}"
            options = ("--nproc-per-node", nproc, "--threads", "1", "--device", "cpu")
            done = run_here(EXAMPLES / name, *options, "--run-dir", str(run_dir), args=args)
            assert done.returncode == 0, done.stderr
            told.append(re.findall(r"^epoch \d+: .*$", done.stdout, flags=re.MULTILINE))
            files = run_dir.rglob("model*.safetensors")  # of the last checkpoints, and the best
            left.append({str(f.relative_to(run_dir)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files})
        assert told[0]
        assert told[0] == told[1]
        assert left[0]
        assert left[0] == left[1]
        return told[0], run_dir

    return run
