"""What a worker tells its launcher, over a pipe of its own: for each message a line of JSON, with a field of ``Told``."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from lockstep.launch.failures import End, Failure


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

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._file = os.fstat(fd)
        self._pid = os.getpid()
        self.send(pid=self._pid)

    def send(self, **message: Any) -> bool:
        """Tell one field of ``Told``. Blocks while the launcher is stopped and the pipe full.

        False: this process is not the worker, or the launcher is gone, or the script has closed the pipe.
        """
        # The first newline ends what Ctrl-C has cut off.
        data = memoryview(f"\n{json.dumps(message, default=asdict)}\n".encode())
        with contextlib.suppress(OSError):
            # A script that has closed all files that are not its own may have opened one that has the number now.
            while os.getpid() == self._pid and os.path.samestat(os.fstat(self._fd), self._file):
                data = data[os.write(self._fd, data) :]
                if not data:
                    return True
        return False


class Receiver:
    """The launcher's end. Make it, give ``worker_fd`` to the worker, and call ``handed_over``."""

    def __init__(self) -> None:
        self.told = Told()
        self._rest = b""
        self._fd, self.worker_fd = os.pipe()
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """For selectors."""
        return self._fd

    def handed_over(self) -> None:
        """The worker has its end, or it gets none."""
        os.close(self.worker_fd)

    def read(self) -> bool:
        """Take in what has come. Whether more can come."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, 65536):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._note(line)
            return False
        return True

    def close(self) -> None:
        """Hear no more."""
        os.close(self._fd)

    def _note(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:  # empty, or cut off
            return
        for name, kind in (("failure", Failure), ("end", End)):
            if name in message:
                message[name] = kind(**message[name])
        self.told = replace(self.told, **message)
