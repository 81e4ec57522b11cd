"""What is found and ended with a launch: its own processes, and nobody else's."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launch_helpers import until

from lockstep._launch import processes
from lockstep._launch.processes import sweep

pytestmark = pytest.mark.timeout(40)

MARK = "/tmp/lockstep-of-this-test"


@pytest.fixture
def marked():
    """A process in a session of its own with the mark in its environment, after an empty entry."""
    # The environment of a process may hold anything: Python itself would not pass an empty entry
    # on.
    source = f"""
import ctypes, os
environ = (ctypes.c_char_p * 4)(b"A=1", b"", b"LOCKSTEP_STORE={MARK}/store", None)
argv = (ctypes.c_char_p * 3)(b"sleep", b"60", None)
ctypes.CDLL(None).execve(b"/bin/sleep", argv, environ)
"""
    process = subprocess.Popen([sys.executable, "-c", source], start_new_session=True)
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    yield process
    process.kill()
    process.wait()


def test_a_marked_process_is_found_whatever_else_is_in_its_environment(marked):
    sweep((), MARK)
    assert marked.wait(10) == -signal.SIGKILL


def test_a_marked_process_of_another_user_is_left_alone(marked, monkeypatch):
    uid = os.getuid()
    monkeypatch.setattr(processes.os, "getuid", lambda: uid + 1)
    sweep((), MARK)
    assert marked.poll() is None
