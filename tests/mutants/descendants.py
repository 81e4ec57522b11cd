"""The processes that come from this one, also those whose parent has exited."""

import ctypes
import os
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.02


def keep_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def next_ended() -> tuple[int, int]:
    """Returns the pid and wait status of a child that has exited, or 0."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def end_all() -> None:
    """Kills all of them, and waits until they have exited."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            if process.is_running():
                process.kill()
        while next_ended()[0]:
            pass
        time.sleep(LOOK_S)
