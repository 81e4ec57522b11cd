"""The step that a process is in, for other processes of its machine at any time: also while it reports nothing, since it holds
the interpreter lock. (Linux.)

A step costs one write into memory that is shared with nobody but those who ask. No file system is behind it, so neither a full
disk nor a removed file can end the process; and it is never closed, since a script that closes all files may have reused the
descriptor.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path

_NAME = "lockstep-step"
_BYTES = 8


class LiveStep:
    """Of this process. ``memory[0] = step`` sets it."""

    def __init__(self) -> None:
        self.hide()
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: not Linux
            descriptor = os.memfd_create(_NAME)
            os.ftruncate(descriptor, _BYTES)
            self.memory, self.descriptor = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q"), descriptor

    def hide(self) -> None:
        """Show it to no other process."""
        self.descriptor = -1
        """To be named in the black box; -1: no other process can see it."""
        self.memory = memoryview(bytearray(_BYTES)).cast("Q")


_mine: LiveStep | None = None


def live_step() -> LiveStep:
    """That of this process, which has one."""
    global _mine
    if _mine is None:
        _mine = LiveStep()
    return _mine


def _in_child() -> None:
    """A fork that takes steps of its own must not count them as those of the process."""
    global _mine
    if _mine is not None:
        _mine.hide()
        _mine = None


os.register_at_fork(after_in_child=_in_child)


def read_live_step(pid: int, descriptor: int) -> int | None:
    """The step of a process of this machine now; None: it cannot be read, because it has closed the descriptor, say."""
    path = Path("/proc", str(pid), "fd", str(descriptor))
    with contextlib.suppress(OSError, struct.error):
        if path.readlink().name.startswith(f"memfd:{_NAME}"):
            return int(struct.unpack("Q", path.read_bytes())[0])
    return None
