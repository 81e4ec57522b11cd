"""A run is finished only where its epochs came to their end, or were left by break, and its script
ended with status 0.

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
@pytest.mark.long
@pytest.mark.longest
def test_the_same_under_torchrun(tmp_path, undisturbed, way, monkeypatch):
    def start(*args, env=None):
        monkeypatch.delenv("LEAVE", raising=False)
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT, *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    check(start, tmp_path, way, undisturbed)


ENDS = """
import sys
from sys import exit as early
import torch
import lockstep

def main():
    team = lockstep.join(progress="off", run_dir="run", threads=1)
    model = torch.nn.Linear(4, 1)
    model, loader = team.prepare(model, [torch.ones(4, 4)] * 3)
    for epoch in {loop}:
        for batch in loader:
            for inputs in batch.shards:
                team.backward(model(inputs).square().mean())
        if epoch == 1:
            break
    {last}
    return {status}

{end}
"""
# the loop, the last line of main, its result, and how the script ends: whether its end is saved and
# the run finished, and whether a line says that the status cannot be seen
RANGE, EPOCHS = "range(2)", "team.epochs(50)"
UNSEEN = [
    (RANGE, "pass", 0, "sys.exit(main())", True, False),
    (EPOCHS, "pass", 0, "early(main())", True, False),
    (RANGE, "pass", 1, "early(main())", False, False),
    (RANGE, "pass", 0, "raise SystemExit(main())", False, True),
    (EPOCHS, "pass", 0, "raise SystemExit(main())", False, True),
    (EPOCHS, "team.close()", 0, "raise SystemExit(main())", True, False),
    (RANGE, "raise ValueError", 0, "raise SystemExit(main())", False, False),
]


@pytest.mark.parametrize(("loop", "last", "status", "end", "finished", "says"), UNSEEN)
def test_the_end_of_a_script_is_saved_or_it_is_said_why_not(python_here, tmp_path, loop, last, status, end, finished, says):
    script = tmp_path / "script.py"
    script.write_text(ENDS.format(loop=loop, last=last, status=status, end=end))
    ended = python_here(script)
    saved = list((tmp_path / "run").glob("checkpoints/step-*/manifest.json"))
    assert bool(saved) is finished, ended
    assert not saved or is_finished(tmp_path), ended
    assert (
        "team.close()" in "\n".join(line for line in (ended.stdout + ended.stderr).splitlines() if "WARNING" in line)
    ) is says
