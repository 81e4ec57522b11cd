"""What a worker tells its launcher, over a pipe of its own: for each message a line of JSON, with a field of ``Told``.

A script may close the pipe with all files that are not its own (``os.closerange``, as daemons do). From then on the lines go
into a file in the launch's private directory, where the launcher looks when it acts on what a worker has told.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.launch.failures import End, Failure

_MOST_BYTES = 1 << 20
"""Taken from a pipe at once: all that it holds, so nothing is left of a worker that has ended. (Linux: 16 pages of 64 KiB.)"""


@dataclass(frozen=True, kw_only=True)
class Told:
    """All that a worker has told so far."""

    pid: int | None = None
    """It was forked: its process id, before anything else."""
    is_watching: bool = False
    """It saves its run by itself when it is asked to stop: see ``lockstep.stopping``."""
    failure: Failure | None = None
    """Its program has failed. Exit handlers are still to come, and may hang."""
    stopped_with: int | None = None
    """Its run has saved itself, or could not, and ends with this status: see ``lockstep.stopping``."""
    end: End | None = None
    """Its program has ended well. Exit handlers are still to come, and may wait for other ranks."""


class Sender:
    """A worker's end of its pipe. Processes that the worker starts tell nothing.

    Those that it forks have the pipe, too, and may outlive it: so nobody waits for the pipe to end.
    """

    def __init__(self, fd: int, private_dir: str, rank: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._path = _path(private_dir, rank)
        self._file = os.fstat(fd)
        self._pid = os.getpid()
        self.send(pid=self._pid)

    def send(self, **message: Any) -> bool:
        """Tell one field of ``Told``. Blocks while the launcher is stopped and the pipe full.

        False: this process is not the worker, or the launcher is gone.
        """
        if os.getpid() != self._pid:
            return False
        # The first newline ends what Ctrl-C has cut off.
        data = rest = f"\n{json.dumps(message, default=asdict)}\n".encode()
        with contextlib.suppress(OSError):
            while rest and self._has_pipe():
                rest = rest[os.write(self._fd, rest) :]
            if rest:
                with self._path.open("ab") as file:
                    file.write(data)
            return True
        return False

    def _has_pipe(self) -> bool:
        with contextlib.suppress(OSError):
            # A script that has closed the pipe may have opened a file that has the number now.
            return os.path.samestat(os.fstat(self._fd), self._file)
        return False


class Receiver:
    """The launcher's end. Make it, give ``worker_fd`` to the worker, and call ``handed_over``."""

    def __init__(self, private_dir: str, rank: int) -> None:
        self.told = Told()
        self._rest = bytearray()
        self._path = _path(private_dir, rank)
        self._fd, self.worker_fd = os.pipe()
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """For selectors."""
        return self._fd

    def handed_over(self) -> None:
        """The worker has its end, or it gets none."""
        os.close(self.worker_fd)

    def read(self) -> bool:
        """Take in what the pipe holds now. Whether more can come."""
        try:
            data = os.read(self._fd, _MOST_BYTES)
        except BlockingIOError:
            return True
        self._rest += data
        if b"\n" in data:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._note(line)
        return bool(data)

    def read_file(self) -> None:
        """Take in what the worker has told since its script has closed the pipe."""
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_bytes().split(b"\n"):
                self._note(line)

    def close(self) -> None:
        """Hear no more."""
        os.close(self._fd)

    def _note(self, line: bytes | bytearray) -> None:
        # Not so a line that is empty or cut off, or that a script has written to a file number that it took for its own.
        with contextlib.suppress(ValueError, TypeError):
            message = json.loads(line)
            for name, kind in (("failure", Failure), ("end", End)):
                if name in message:
                    message[name] = kind(**message[name])
            self.told = replace(self.told, **message)


def _path(private_dir: str, rank: int) -> Path:
    return Path(private_dir, f"told-{rank}")
