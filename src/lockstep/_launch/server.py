"""The launcher's end of a fork server.

``import torch`` takes seconds of a core, and a launch starts many processes, some of them again and
again. The server imports it once, and every worker is a fork of the server::

    launcher --- socket ---> fork server (imports torch, is never a rank)
       ^                        | fork          | fork
       |                        v               v
       +------ a pipe each --- rank 0 ...      rank 1

The server is a separate process, and not the launcher, since a fork copies everything: a launcher
has threads, open sockets and signal handlers that no worker may inherit. The server never starts a
parallel region and never initializes a device, which do not survive a fork (``serve``).

All workers are children of the server, so its death is the death of the launch: the kernel sends
each descendant SIGKILL then (``guard``), and no rank trains on without a launcher.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from lockstep._base.errors import LaunchError
from lockstep._launch.spec import HASH_SEED

WARM = ("torch._dynamo",)
"""The modules that ``ForkServer.warm`` has the server import, which most training scripts need.
(PyTorch imports this one with the first optimizer or DistributedDataParallel, which takes a second
or two.)"""

# The working directory, which -c puts first, must not hide modules of the same names. The directory
# of this lockstep comes last, so that it hides nothing either; usually it is there already.
_BOOT = """
import sys
at_start = tuple(sys.modules)
if sys.path and sys.path[0] == "": del sys.path[0]
import json
sys.path += [entry for entry in json.loads(sys.argv[2]) if entry not in sys.path]
from lockstep._launch.serve import main
main(int(sys.argv[1]), at_start)
"""


class Process(Protocol):
    """What is used of ``subprocess.Popen``."""

    @property
    def pid(self) -> int:
        """Process id."""

    def poll(self) -> int | None:
        """Returns its exit status, or minus the signal that ended it; None: it is running."""

    def wait(self) -> int:
        """Waits until it exits; returns the same."""

    def kill(self) -> None:
        """Sends SIGKILL if it is running."""


class ForkServer:
    """A process that has imported torch and forks workers.

    ``multiprocessing`` has a fork server, but one per process (shared with other uses by the
    caller), which imports the caller's script again for each worker, does not let the environment
    be set, and whose workers are no ordinary main processes (exit handlers, start methods, standard
    input).

    All processes that the server forked die with it, and it dies with the thread that created it.

    Args:
        process: runs ``serve.main`` with the other end of the socket.
        end: our end.
        serves_calls: whether it was started for function calls, and not for ``lockstep run``, which
            knows what the script imports.
    """

    def __init__(self, process: Process, end: socket.socket, *, serves_calls: bool = False) -> None:
        self._process = process
        self._socket = end
        self._next_key = 0
        self.is_ready = False
        self.serves_calls = serves_calls

    @classmethod
    def start(cls, import_path: Sequence[str] = ()) -> ForkServer:
        """Starts a server. Returns immediately; requests wait in the socket until imports are
        complete.

        Args:
            import_path: added at the end of ``sys.path``.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            *_interpreter_flags(),
            "-c",
            _BOOT,
            str(theirs.fileno()),
            json.dumps([*import_path, str(Path(__file__).parents[2])]),
        ]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=server_environ(),
                start_new_session=True,  # the launcher handles Ctrl-C
            )
        except OSError as error:
            ours.close()
            raise LaunchError(f"the fork server could not be started: {error}") from error
        finally:
            # The server alone must have its end: only then does its death close the connection, for
            # which `receive` waits.
            theirs.close()
        return cls(process, ours, serves_calls=bool(import_path))

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it can fork workers."""
        return self._socket.fileno() >= 0 and self._process.poll() is None

    def fileno(self) -> int:
        """The descriptor for selectors: readable when ``receive`` has a message."""
        return self._socket.fileno()

    def start_worker(self, spec_path: str, rank: int, fds: Sequence[int]) -> int:
        """Requests a worker; returns its key in the messages from ``receive``. Does not block, nor
        fail: if the server has exited, ``receive`` raises the error.

        Args:
            spec_path: what it runs.
            fds: its standard input, output and error, and the pipe for its messages; they may be
                closed afterwards.
        """
        self._next_key += 1
        message = json.dumps({"key": self._next_key, "rank": rank, "spec": spec_path}).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        return self._next_key

    def warm(self, modules: Sequence[str] = WARM) -> None:
        """Has the server import these modules now. Does not block; workers requested later wait for
        it."""
        # ``receive`` raises the error
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(json.dumps({"import": modules}).encode())

    def receive(self) -> dict[str, Any]:
        """The server's next message (see ``serve``); blocks if there is none yet.

        Raises:
            LaunchError: the server has exited, and with it all of its workers.
        """
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:  # it ended with messages unread, which is reported first, and once
            data = self._socket.recv(65536)
        if not data:  # the server, and a worker that it was forking, have ended
            self.close()
            raise LaunchError(
                f"the fork server (process {self.pid}), parent of all ranks on this machine, {_end_of(self._process.wait())}"
            )
        message: dict[str, Any] = json.loads(data)
        self.is_ready = self.is_ready or "ready" in message
        return message

    def close(self) -> None:
        """Ends the server and all processes that it forked, also workers not yet reported. May be
        called again."""
        self._process.kill()
        self._process.wait()
        self._socket.close()


_kept: ForkServer | None = None
"""An idle server, for the next launch in this process."""


def kept_server() -> ForkServer | None:
    """Returns the server that the next ``take_server`` gives, if there is one already."""
    return _kept if _kept is not None and _kept.is_alive() else None


def start_early() -> ForkServer:
    """Starts the server for the next ``take_server``, before the rest of the launcher is imported.
    The caller must close it."""
    server = take_server()
    keep_server(server)
    return server


def take_server(import_path: Sequence[str] = ()) -> ForkServer:
    """The kept server, or a new one. The caller must close it, or keep it."""
    global _kept
    if (server := kept_server()) is not None:
        _kept = None
        return server
    drop_server()
    return ForkServer.start(import_path)


def keep_server(server: ForkServer) -> None:
    """Keeps an idle server for the next ``take_server``."""
    global _kept
    drop_server()
    _kept = server


def drop_server() -> None:
    """Ends the kept server, if any. (It ends with this process anyway.)"""
    global _kept
    if _kept is not None:
        _kept.close()
    _kept = None


atexit.register(drop_server)


def _interpreter_flags() -> list[str]:
    options = [f"{name}" if value is True else f"{name}={value}" for name, value in sys._xoptions.items()]
    return [
        *(["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []),
        *(f"-W{option}" for option in sys.warnoptions),
        *(f"-X{option}" for option in options),
    ]


def _end_of(status: int) -> str:
    if status != -signal.SIGKILL:
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"exited unexpectedly, {how}, and its ranks with it"
    return (
        "was killed by SIGKILL, so its ranks exited. Likely causes: out of memory (see dmesg), "
        "or another process killed it. To resume, repeat the command"
    )


def server_environ() -> dict[str, str]:
    """The environment in which the server loads libraries, which workers cannot change any more.
    They get a separate one."""
    environ = dict(os.environ)
    # NumPy's BLAS creates its threads when it is loaded: here it needs none, and each worker sets
    # their number.
    environ["OPENBLAS_NUM_THREADS"] = "1"
    if not environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        # Idle threads of OpenMP spin. If the cores have other work, such as loader workers, a small
        # step then takes 15 to 30 ms instead of 1, and now and then 200. If they sleep, a step on
        # idle cores takes half a millisecond longer.
        environ |= {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    environ.setdefault("PYTHONHASHSEED", HASH_SEED)
    return environ
