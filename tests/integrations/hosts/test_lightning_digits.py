"""A whole script with Lightning's Trainer: one result, all metrics included, on any number of
processes, through kills."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]
SAVED = 75  # the status of a run that was stopped and is saved
SCRIPT = Path(__file__).parent / "lightning_digits.py"


def ended(done):
    """The steps and the digest of weights and metrics."""
    assert done.returncode == 0, done.stderr
    [found] = re.findall(r"^ended .*", done.stdout, flags=re.MULTILINE)
    return found


@pytest.fixture
def train(run_here):
    """``train(processes, run_dir)``: what it has come to; with ``KILL=STEP`` or ``STOP=STEP``, the
    status."""

    def run(processes, run_dir, **signals):
        env = {name: str(step) for name, step in signals.items()}
        done = run_here(SCRIPT, "--nproc-per-node", str(processes), args=[run_dir], env=env)
        return done.returncode if signals else ended(done)

    return run


def test_a_script_killed_and_stopped_within_epochs_ends_as_an_undisturbed_one(train):
    assert train(2, "run", KILL=10) not in (0, SAVED)
    assert train(3, "run", STOP=17) == SAVED
    assert train(2, "run", KILL=29) not in (0, SAVED)  # in the last epoch, of which averages remain
    assert train(1, "run") == train(2, "whole")


def test_a_fold_that_a_resumed_run_has_not_restored_is_not_evaluated(run_here, tmp_path):
    def folds(processes, kill):
        done = run_here(SCRIPT.with_name("lightning_folds.py"), "--nproc-per-node", str(processes), env={"KILL": str(kill)})
        assert (done.returncode == 0) == (kill == 0), done
        return [line for line in done.stdout.splitlines() if line.startswith("fold")]

    first, second = folds(1, 0)
    (tmp_path / "run").rename(tmp_path / "whole")
    assert folds(2, kill=20) == [first]  # in the second fold
    assert folds(1, kill=0) == ["fold 0 UsageError", second]


def command(directory, *words, timeout):
    """The output of a Python module, run as a command."""
    words = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.longest
def test_a_script_does_not_depend_on_the_number_of_processes_or_the_launcher(train, tmp_path):
    whole = train(1, "1")
    assert train(3, "3") == whole
    assert train(3, "3") == whole  # a finished run, reached again
    assert whole in command(tmp_path, "torch.distributed.run", "--nproc-per-node", 2, SCRIPT, "2", timeout=100)


@pytest.mark.longest
@pytest.mark.timeout(600)
def test_verify_finds_no_difference_in_a_script_with_lightning(tmp_path):
    command(tmp_path, "lockstep._cli.main", "verify", SCRIPT, timeout=500)
