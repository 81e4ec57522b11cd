"""Promises of the lock: one launch at a time in a run's directory, and it dies with its holder."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from lockstep.errors import ConfigError
from lockstep.rundir.lock import RunLock, holder_of, last_launch
from lockstep.rundir.names import set_aside

pytestmark = pytest.mark.timeout(30)

HOLD = """
import sys
from pathlib import Path
from lockstep.rundir.lock import RunLock
lock = RunLock(Path(sys.argv[1]), "launch-7", patience_s=float(sys.argv[2]))
print("held", flush=True)
"""


@contextlib.contextmanager
def another_process(run_dir, *, code=HOLD, patience_s=0.0):
    """A process that takes the lock, and has it until its input ends. Gives it when it has it, or has ended."""
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
        with pytest.raises(ConfigError, match=rf"is in use by process {first.pid} on .*--run-dir"):
            RunLock(tmp_path, patience_s=0.1)
        assert holder_of(tmp_path).startswith(f"process {first.pid} on ")
        assert last_launch(tmp_path) == "launch-7"
        with another_process(tmp_path) as second:
            assert "ConfigError" in second.stderr.read()


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
import os
from lockstep.errors import ConfigError
if os.fork() == 0:
    lock.release()
    try:
        RunLock(Path(sys.argv[1]), patience_s=0)
    except ConfigError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7, "the child has the lock"
print("has forked", flush=True)
"""


def test_forked_children_neither_have_it_nor_keep_it_nor_lose_it(tmp_path):
    with another_process(tmp_path, code=HOLD + FORK) as first:
        assert has_it(first)
        assert first.stdout.readline() == "has forked\n", first.stderr.read()
        assert holder_of(tmp_path) is not None
    linger = "if os.fork() == 0:\n    time.sleep(60)\nos.kill(os.getpid(), 9)"
    with another_process(tmp_path, code=f"{HOLD}\nimport os, time\n{linger}") as first:
        assert has_it(first)
        RunLock(tmp_path, patience_s=20).release()  # its child still has the file open
        for child in psutil.Process().children(recursive=True):
            child.kill()
