"""Who holds the file lock that a process waits for."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time

import filelock
import pytest

from lockstep.tools.explain.file_locks import awaited_locks, polled_file

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="no table of locks")]  # noqa: PTH110

TAKE = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
print("ready", flush=True)
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
time.sleep(1000)
"""


@contextlib.contextmanager
def taking(path, how):
    """A process that requests the lock of a file in this way, and then sleeps."""
    process = subprocess.Popen([sys.executable, "-c", TAKE, str(path), how], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.kill()
    process.communicate()


def locks_of(pid, polled="", ranks=None):
    deadline = time.monotonic() + 30
    while not (locks := awaited_locks(pid, polled, ranks or {})) and time.monotonic() < deadline:
        time.sleep(0.05)
    return locks


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_the_rank_that_holds_a_lock_is_named(tmp_path, how):
    path = tmp_path / "data.lock"
    with path.open("w") as file:
        (fcntl.lockf if how == "lockf" else fcntl.flock)(file, fcntl.LOCK_EX)
        with taking(path, how) as pid:
            ((line, rank),) = locks_of(pid, ranks={os.getpid(): 3, pid: 1})
    assert str(path) in line
    assert f"rank 3 (pid {os.getpid()})" in line
    assert rank == 3


def test_a_holder_that_is_no_rank_is_named_by_its_command(tmp_path):
    path = tmp_path / "data.lock"
    with taking(path, "flock") as holder:
        while not awaited(path):
            time.sleep(0.05)
        with taking(path, "flock") as pid:
            ((line, rank),) = locks_of(pid, ranks={pid: 1})
            assert f"process {holder} (`" in line
            assert rank is None
            assert awaited_locks(holder, "", {pid: 1}) == []  # it waits for none


def awaited(path):
    """Whether somebody has locked the file."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_the_file_that_the_package_filelock_polls_is_found_although_it_keeps_it_closed(tmp_path):
    path = tmp_path / "data.lock"
    stop = threading.Event()

    def poll():
        with contextlib.suppress(filelock.Timeout), filelock.FileLock(path, timeout=60, poll_interval=0.01):
            stop.wait()

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not (found := polled_file(thread.ident)) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert found == str(path)
        assert polled_file(threading.get_ident()) == ""
        stop.set()
    thread.join(30)
    with taking(tmp_path / "held", "flock") as holder:
        while not awaited(tmp_path / "held"):
            time.sleep(0.05)
        ((line, _),) = locks_of(os.getpid(), str(tmp_path / "held"), {holder: 2})
        assert f"waits for the lock of {tmp_path / 'held'} (flock), which rank 2" in line
