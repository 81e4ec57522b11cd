"""Messages from a worker to its launcher, over a pipe for each worker: lines of JSON, each with a
field of ``WorkerMessages``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lockstep._launch.failures import End, Failure

_MOST_BYTES = 1 << 20
"""The number of bytes to read from a pipe in one call: its capacity, so that nothing is left of a
worker that has exited."""


@dataclass(frozen=True, kw_only=True)
class WorkerMessages:
    """What a worker has reported so far."""

    pid: int | None = None
    """The worker's process id, which it sends first."""
    watches: Sequence[int] = ()
    """The signals on which it saves its run by itself: see ``_base/stopping.py``."""
    failure: Failure | None = None
    """The failure of its program. Its exit handlers have not run yet, and may hang."""
    stopped_with: int | None = None
    """The exit status of its run, which was asked to stop, and saved itself or could not: see
    ``_base/stopping.py``."""
    is_unsaved: bool = False
    """Whether its run finished, but its end could not be saved."""
    end: End | None = None
    """The successful end of its program. Its exit handlers have not run yet, and may wait for other
    ranks."""

    @property
    def is_over(self) -> bool:
        """Whether its program is finished without a failure, so that only threads, exit handlers
        and children are left."""
        return self.end is not None or self.stopped_with is not None


class Sender:
    """A worker's end of its pipe. Processes that the worker starts send nothing.

    Processes that it forks inherit the pipe and may outlive it, so the end of the pipe does not
    mean the end of the worker."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._pid = os.getpid()
        self.send(pid=self._pid)

    def send(self, **message: Any) -> bool:
        """Sends one field of ``WorkerMessages``. Blocks while the launcher is suspended and the
        pipe full.

        Returns:
            False if this process is not the worker, or the launcher has exited, or the script has
            closed the pipe.
        """
        if os.getpid() != self._pid:
            return False
        # The first newline ends a line that Ctrl-C has cut off.
        rest = f"\n{json.dumps(message, default=asdict)}\n".encode()
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            return not rest
        return False


class Receiver:
    """The launcher's end. Pass ``worker_fd`` to the worker, then call ``handed_over``."""

    def __init__(self) -> None:
        self.messages = WorkerMessages()
        self._rest = bytearray()
        self._fd, self.worker_fd = os.pipe()
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """The descriptor of the pipe, for selectors."""
        return self._fd

    def handed_over(self) -> None:
        """Closes the worker's end here, once the worker has it."""
        os.close(self.worker_fd)

    def read(self) -> bool:
        """Reads what is in the pipe now. Returns False at its end."""
        try:
            data = os.read(self._fd, _MOST_BYTES)
        except BlockingIOError:
            return True
        self._rest += data
        # Not for each piece: splitting a long message again with every piece takes quadratic time.
        if b"\n" in data:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._note(line)
        return bool(data)

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._fd)

    def _note(self, line: bytes | bytearray) -> None:
        # A line may be empty or cut off, or written by a script that took the descriptor for its
        # own.
        with contextlib.suppress(ValueError, TypeError):
            message = json.loads(line)
            for name, kind in (("failure", Failure), ("end", End)):
                if name in message:
                    message[name] = kind(**message[name])
            self.messages = replace(self.messages, **message)
