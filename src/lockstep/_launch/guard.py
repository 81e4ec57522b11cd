"""The parent death signal: a process that has set it cannot outlive its parent, even one killed
with SIGKILL.

It is set in the fork server and, through a fork hook that every descendant inherits, in the workers
and in all that they fork (loader workers too).
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_fork = threading.local()


def die_with_parent() -> None:
    """Has the kernel kill this process as soon as the *thread* that started it ends."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")


def guard_descendants() -> None:
    """Sets the death signal in every process forked from now on, and in all their descendants."""
    os.register_at_fork(before=_note_parent, after_in_child=_guard_child)


def _note_parent() -> None:
    # The signal is sent when the forking *thread* ends. A process forked from a helper thread must
    # outlive that thread, so only forks of the main thread, which lives as long as the process, are
    # guarded.
    _fork.parent = os.getpid() if threading.get_native_id() == os.getpid() else None


def _guard_child() -> None:
    parent = getattr(_fork, "parent", None)
    if parent is None:
        return
    die_with_parent()
    # The parent ended between the fork and the call above: no signal will be sent.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
