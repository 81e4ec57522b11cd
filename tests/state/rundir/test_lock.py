"""Promises of the lock: one launch at a time in a run's directory, and it dies with its holder."""

import contextlib
import fcntl
import signal
import subprocess
import sys
import time

import pytest

from lockstep._base.errors import ConfigError
from lockstep._state.rundir.lock import RunLock, holder_of, last_job, last_launch
from lockstep._state.rundir.names import rename_old_run

pytestmark = pytest.mark.timeout(30)

HOLD = """
import sys
from pathlib import Path
from lockstep._state.rundir.lock import RunLock
lock = RunLock(Path(sys.argv[1]), "launch-7", patience_s=float(sys.argv[2]))
print("held", flush=True)
"""


@contextlib.contextmanager
def another_process(run_dir, *, code=HOLD, patience_s=0.0):
    """A process that takes the lock, and has it until its input ends. Gives it when it has it, or
    has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nsys.stdin.read()", str(run_dir), str(patience_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def has_it(process):
    return process.stdout.readline() == "held\n"


def test_a_second_process_is_refused_and_told_who_the_first_one_is(tmp_path):
    with another_process(tmp_path) as first:
        assert has_it(first)
        with pytest.raises(ConfigError, match=rf"process {first.pid} on .*--run-dir"):
            RunLock(tmp_path, patience_s=0.1)
        assert holder_of(tmp_path).startswith(f"process {first.pid} on ")
        assert last_launch(tmp_path) == "launch-7"
        with another_process(tmp_path) as second:
            assert "ConfigError" in second.stderr.read()


ELSEWHERE = "import socket\nsocket.gethostname = lambda: 'far'\n" + HOLD


def test_a_machine_that_may_be_lost_is_waited_for_longer_and_it_is_said(tmp_path, capfd):
    with another_process(tmp_path, code=ELSEWHERE) as first:
        assert has_it(first)
        with pytest.raises(ConfigError, match=rf"far failed.*--run-dir {tmp_path} "):
            RunLock(tmp_path, patience_s=0.1)
        with pytest.raises(ConfigError, match=f"process {first.pid} on far"):
            RunLock(tmp_path, patience_s=0.1, far_patience_s=1.2)
        assert f"process {first.pid} on far, for up to 1 s" in capfd.readouterr().err
        first.send_signal(signal.SIGKILL)
        RunLock(tmp_path, patience_s=0.1, far_patience_s=20).release()


def test_it_is_free_as_soon_as_its_holder_is_killed(tmp_path):
    with another_process(tmp_path) as first:
        assert has_it(first)
        first.send_signal(signal.SIGKILL)
        RunLock(tmp_path, patience_s=20).release()
    assert holder_of(tmp_path) is None


def test_a_launch_waits_a_while_for_one_that_is_about_to_end(tmp_path):
    lock = RunLock(tmp_path)
    with another_process(tmp_path, patience_s=20) as second:
        time.sleep(0.3)
        assert second.poll() is None
        lock.release()
        lock.release()
        assert has_it(second)


FORK = """
import os, signal
child = os.fork()
if child == 0:
    lock.release()
    try:
        RunLock(Path(sys.argv[1]), patience_s=0)
    except Exception as error:
        os._exit(7 if "in use" in str(error) else 1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_forked_child_does_not_have_it_and_cannot_give_it_away(tmp_path):
    with another_process(tmp_path, code=HOLD + FORK) as first:
        assert has_it(first)
        assert first.stdout.readline() == "7\n"
        assert holder_of(tmp_path) is not None


def test_a_directory_that_is_set_aside_at_the_worst_moment_does_not_lead_to_its_lock(tmp_path, monkeypatch):
    run_dir, take, aside = tmp_path / "run", fcntl.lockf, []
    run_dir.mkdir()

    def set_aside_before(*args):
        monkeypatch.undo()
        aside.append(rename_old_run(run_dir))
        run_dir.mkdir()
        take(*args)

    monkeypatch.setattr(fcntl, "lockf", set_aside_before)
    RunLock(run_dir, "mine").release()
    assert (last_launch(run_dir), last_launch(aside[0])) == ("mine", "")


def test_one_that_is_released_twice_closes_no_file_of_another(tmp_path):
    lock = RunLock(tmp_path)
    lock.release()
    with (tmp_path / "file").open("w") as file:  # with the same descriptor
        lock.release()
        file.write("whole")
        file.flush()
    assert (tmp_path / "file").read_text() == "whole"


def test_a_directory_where_no_run_was_has_no_holder(tmp_path):
    assert (holder_of(tmp_path), holder_of(tmp_path / "none"), last_launch(tmp_path)) == (None, None, "")
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_the_name_of_an_earlier_launch_is_left(tmp_path):
    RunLock(tmp_path, "a launch with a long name", "its job").release()
    RunLock(tmp_path, "b").release()
    assert (last_launch(tmp_path), last_job(tmp_path)) == ("b", "")
    assert (tmp_path / "lock").read_text().endswith("\nb\n\n")  # as people read it
