"""A run is finished only where its epochs came to their end, or were left by break, and its script ended with status 0.

Any other is resumed, and ends as if it had not been left."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import python_here

__all__ = ["python_here"]

pytestmark = pytest.mark.timeout(100)
SCRIPT = Path(__file__).parent / "ways_out.py"
STEPS = 12
FINISHED, INTERRUPTED = True, False
# way, place, how the epochs are held: the status, and whether the run is finished
WAYS = {
    ("break", "loader"): (0, FINISHED),
    ("break", "epochs"): (0, FINISHED),
    ("break", "epochs", "generator"): (0, FINISHED),
    ("break", "epochs", "enumerate"): (0, FINISHED),
    ("break", "epochs", "name"): (0, FINISHED),
    ("break", "epochs", "iterator"): (0, FINISHED),
    ("continue", "loader"): (0, FINISHED),
    ("exit 0", "end"): (0, FINISHED),
    ("exit 0", "after"): (0, FINISHED),
    ("return", "loader"): (1, INTERRUPTED),
    ("exit 0", "loader"): (0, INTERRUPTED),
    ("exit 0", "epochs"): (0, INTERRUPTED),
    ("exit 1", "shards"): (1, INTERRUPTED),
    ("exit 1", "loader"): (1, INTERRUPTED),
    ("exit 1", "after"): (1, INTERRUPTED),
    ("exit 1", "end"): (1, INTERRUPTED),
    ("exit text", "loader"): (1, INTERRUPTED),
    ("exit text", "evaluation"): (1, INTERRUPTED),
    ("quit", "epochs"): (1, INTERRUPTED),
    ("raise exit", "loader"): (1, INTERRUPTED),
    ("os._exit", "loader"): (0, INTERRUPTED),
    ("os._exit", "after"): (0, INTERRUPTED),
    ("error", "evaluation"): (1, INTERRUPTED),
    ("error", "after"): (1, INTERRUPTED),
    ("caught", "shards"): (0, INTERRUPTED),
    ("caught", "loader"): (0, INTERRUPTED),
    ("caught", "epochs", "generator"): (0, INTERRUPTED),
    ("caught", "epochs", "name"): (0, INTERRUPTED),
    ("caught", "epochs", "iterator"): (0, INTERRUPTED),
    ("thread", "loader"): (0, INTERRUPTED),
    ("interrupt", "epochs"): (0, INTERRUPTED),
    ("SIGTERM", "loader"): (75, INTERRUPTED),
    ("SIGINT", "loader"): (130, INTERRUPTED),
    ("SIGKILL", "evaluation"): (-signal.SIGKILL, INTERRUPTED),
}
SHOWS_LITTLE = {
    ("break", "epochs"),
    ("break", "epochs", "enumerate"),
    ("exit 0", "after"),
    ("exit 0", "epochs"),
    ("exit 1", "shards"),
    ("exit 1", "after"),
    ("exit text", "evaluation"),
    ("os._exit", "after"),
    ("error", "evaluation"),
    ("error", "after"),
    ("caught", "shards"),
    ("SIGINT", "loader"),
    ("SIGKILL", "evaluation"),
}
UNDER_RUN = [
    ("break", "epochs", "generator"),
    ("return", "loader"),
    ("exit 0", "loader"),
    ("exit 1", "end"),
    ("raise exit", "loader"),
    ("caught", "epochs", "generator"),
]
UNDER_TORCHRUN = [("exit text", "loader"), ("break", "epochs", "name"), ("caught", "loader")]


def is_finished(directory):
    newest = max((directory / "run" / "checkpoints").glob("step-*/manifest.json"))
    return json.loads(newest.read_text())["finished"]


def last_words(ended):
    return next(line for line in ended.stdout.splitlines() if line.startswith("ended")).split()[1:]


@pytest.fixture(scope="session")
def undisturbed():
    return []


def check(start, directory, way, undisturbed):
    status, finished = WAYS[way]
    left = start(*way, env={"LEAVE": "1"})
    assert left.returncode == status, left
    assert is_finished(directory) is finished, left
    if finished:
        again = start(*way, env={"LEAVE": "1"})
        assert last_words(again) == last_words(left), (left, again)
        assert is_finished(directory)
        return
    again = start(*way)
    assert again.returncode == 0, again
    words = last_words(again)
    undisturbed[:] = undisturbed or words
    assert (words, words[0]) == (undisturbed, str(STEPS)), (left, again)
    assert " resumes after step " in again.stdout, again
    assert is_finished(directory), again


def rows(ways):
    return [pytest.param(way, id=" ".join(way), marks=[pytest.mark.longest] if way in SHOWS_LITTLE else []) for way in ways]


@pytest.mark.parametrize("way", rows(WAYS))
def test_a_run_is_finished_only_if_its_script_has_brought_it_to_an_end_under_python(python_here, tmp_path, undisturbed, way):
    check(lambda *args, env=None: python_here(SCRIPT, *args, env=env), tmp_path, way, undisturbed)


@pytest.mark.parametrize("way", UNDER_RUN, ids=" ".join)
def test_the_same_under_lockstep_run(run_here, tmp_path, undisturbed, way):
    check(lambda *args, env=None: run_here(SCRIPT, args=args, env=env), tmp_path, way, undisturbed)


@pytest.mark.parametrize("way", UNDER_TORCHRUN, ids=" ".join)
@pytest.mark.longest
def test_the_same_under_torchrun(tmp_path, undisturbed, way, monkeypatch):
    def start(*args, env=None):
        monkeypatch.delenv("LEAVE", raising=False)
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT, *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    check(start, tmp_path, way, undisturbed)
