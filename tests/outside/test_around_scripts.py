"""What a script finds around it under ``lockstep run``: that of python and torchrun."""

import json
import os
import signal
import time

import pytest

pytestmark = pytest.mark.timeout(120)

TWO = ("--nproc-per-node", "2")
# What torchrun's agent sets for itself alone: its processes' way of telling it of errors, and its
# own signals.
OF_THE_AGENT = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "_"}
# Each launch has its own; and here the first worker serves the store, not the launcher, which is
# told by the third.
OF_THE_LAUNCH = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS"}


def test_a_script_finds_what_python_shows(cold_run, start, here):
    cold_run(*TWO, "shown.py", "found")
    start("shown.py", "found")
    python, first, second = (json.loads((here / name).read_text())["found"] for name in ("found", "found0", "found1"))
    assert len({found.pop("seed") for found in (python, first, second)}) == 3
    assert first == second
    assert first == python


@pytest.mark.longest
@pytest.mark.long
def test_a_script_finds_the_variables_of_torchrun(cold_run, torchrun, here):
    cold_run(*TWO, "--max-restarts", "2", "shown.py", "ours")
    torchrun(*TWO, "--max-restarts", "2", "shown.py", "theirs")
    for rank in "01":
        ours, theirs = (json.loads((here / f"{name}{rank}").read_text())["environ"] for name in ("ours", "theirs"))
        assert not theirs.keys() - ours.keys() - OF_THE_AGENT
        set_by_them = {name for name in theirs if os.environ.get(name) != theirs[name]} - OF_THE_AGENT - OF_THE_LAUNCH
        assert len(set_by_them) >= 12
        assert {name: ours[name] for name in set_by_them} == {name: theirs[name] for name in set_by_them}


@pytest.mark.parametrize("options", [(), pytest.param(("--log-dir", "logs", "--tee"), marks=pytest.mark.long)])
def test_what_is_piped_in_reaches_rank_0_alone(run_here, options):
    source = "import os, sys; print(os.environ['RANK'], repr(sys.stdin.read()))"
    done = run_here(source, *TWO, *options, stdin="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    lines = sorted(line.removeprefix("[rank 0] ").removeprefix("[rank 1] ") for line in done.stdout.splitlines())
    assert lines == ["0 'one\\ntwo\\n'", "1 ''"]


def test_what_is_piped_in_reaches_the_attached_rank_instead(run_here):
    source = "import os, sys; print(os.environ['RANK'], repr(sys.stdin.read()))"
    done = run_here(source, *TWO, "--attach", "1", stdin="one")
    assert sorted(done.stdout.splitlines()) == ["0 ''", "1 'one'"]


@pytest.mark.long
def test_a_script_that_saves_on_sigterm_is_told_by_it_and_has_the_time(start_launch, here):
    launcher = start_launch(*TWO, "saver.py", "4")
    deadline = time.monotonic() + 100
    while len(list(here.glob("started-*"))) < 2:
        assert time.monotonic() < deadline
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 143
    assert sorted(out.splitlines()) == ["rank 0 has saved", "rank 1 has saved"]
    assert (here / "state.pt").exists()
    assert "Traceback" not in err
