"""A library that drives training with a separate loop reports its position to the engine: results
depend neither on the number of processes nor on kills, and its state is restored once."""

import json
from pathlib import Path

import pytest

import lockstep
from lockstep._base.errors import UsageError

pytestmark = pytest.mark.timeout(100)
SCRIPT = Path(__file__).parent / "hosted.py"
STEPS = {"whole": 18, "break": 12, "break pass": 15, "two passes": 27}


@pytest.fixture
def host(run_here, tmp_path):
    """``host(processes, how, kill=0, catch=0)``: the words of its last line, and how many processes
    have restored its state."""

    def run(processes, how, kill=0, catch=0):
        env = {"KILL": str(kill), "CATCH": str(catch)}
        done = run_here(SCRIPT, "--nproc-per-node", str(processes), args=[how], env=env)
        assert (done.returncode == 0) == (kill == 0), done
        lines = done.stdout.splitlines()
        ended = [line.split()[1:] for line in lines if line.startswith("ended")]
        return (ended[0] if ended else None), sum(line.endswith("restored") for line in lines)

    return run


@pytest.fixture(scope="module")
def known():
    return {}


KILLS = [
    ("whole", (3,)),
    ("whole", (7, 15)),
    ("whole", (12,)),
    ("break", (9,)),
    ("break pass", (3,)),
    ("break pass", (11,)),
    ("two passes", (9,)),
]


@pytest.mark.parametrize(("how", "kills"), KILLS, ids=str)
def test_a_hosted_run_that_is_killed_ends_as_an_undisturbed_one(host, tmp_path, known, how, kills):
    for number, step in enumerate(kills):
        host(2 + number, how, kill=step)
    ended, restored = host(1, how)
    # In the second pass of an epoch: once for what comes before it, and once where it begins.
    assert restored == (2 if how == "two passes" else 1)
    assert ended[0] == str(STEPS[how])
    assert known.setdefault(how, ended) == ended
    assert host(3, how) == (ended, 3)  # the finished run, reached again


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("how", STEPS)
def test_a_hosted_run_does_not_depend_on_the_number_of_processes(host, known, how, processes):
    ended, restored = host(processes, how)
    assert (known.setdefault(how, ended), restored) == (ended, 0)


@pytest.mark.quick
def test_a_loop_that_an_error_has_left_is_resumed(host, tmp_path, known):
    host(2, "whole", catch=9)
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*/manifest.json"))
    assert not json.loads(newest.read_text())["finished"]
    ended, _ = host(1, "whole")
    assert ended[0] == str(STEPS["whole"])
    assert known.setdefault("whole", ended) == ended


@pytest.mark.quick
def test_epochs_are_begun_once_and_in_order(tmp_path):
    with lockstep.join(run_dir=str(tmp_path), threads=1) as team:
        epochs = team.hosted_epochs(3)
        with pytest.raises(UsageError):
            epochs.begin(1)
        epochs.begin(0)
        with pytest.raises(UsageError):
            epochs.begin(0)
        epochs.begin(1)
        epochs.end(early=True)
        epochs.end()
        with pytest.raises(UsageError):
            epochs.begin(2)
        with pytest.raises(lockstep.ConfigError):
            team.hosted_epochs(-1)
