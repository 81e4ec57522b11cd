"""Forks the Python processes that tests start to fork others from, where ``subprocess`` would start
an interpreter: to import torch again takes 2 s, most of what a row takes.

These are lockstep's fork server and the nursery of tests. Each becomes a spare process, which is
forked before pytest has imported anything of lockstep, in which a fault may be planted.
"""

import atexit
import fcntl
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NUM_SPARES = 2  # whatever else is started is started as usual
MAX_REQUEST_BYTES = 1 << 20
MAX_FDS = 8
FIRST_FD = 3  # behind the standard ones
BEYOND_FDS = 1000
# of subprocess.Popen, that a spare process can follow
SETTINGS = {"cwd", "env", "pass_fds", "start_new_session", "stdin"}

_spares: list[tuple[int, socket.socket]] = []
"""Process ids, and the sockets by which these are told what to become."""


@atexit.register
def leave() -> None:
    """What a worker does last of all: registered before the exit handlers of torch, as in a fork
    server that imports it itself."""
    if serve := sys.modules.get("lockstep._launch.serve"):
        serve._leave()


class Command(BaseException):
    """Raised in a spare process that has become another, up to where nothing is on its stack."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def run(self) -> None:
        """Runs it as a new interpreter does."""
        # which runs too soon here: see ``leave``
        atexit.unregister(importlib.import_module("lockstep._launch.serve")._leave)
        sys.orig_argv = [sys.executable, *self.words]
        if self.words[0] == "-c":
            sys.argv = ["-c", *self.words[2:]]
            sys.path.insert(0, "")
            exec(compile(self.words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [*self.words]
            sys.path.insert(0, str(Path(self.words[0]).parent))
            runpy.run_path(self.words[0], run_name="__main__")


class Forked:
    """What is used of ``subprocess.Popen``, for a spare process that becomes the command."""

    def __init__(self, command: Sequence[str | Path], settings: dict[str, Any]) -> None:
        self.pid, end = _spares.pop()
        self.returncode: int | None = None
        fds, env = settings.get("pass_fds", ()), {**(settings.get("env") or os.environ)}
        asked = {"words": list(map(str, command[1:])), "cwd": str(settings.get("cwd") or Path.cwd()), "env": env, "fds": fds}
        with end:
            socket.send_fds(end, [json.dumps(asked).encode()], fds)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        return self._wait(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Popen(subprocess.Popen[Any]):
    """``subprocess.Popen``, or ``Forked`` where a spare process can become the command."""

    def __new__(cls, args: Any, *others: Any, **settings: Any) -> Any:
        is_python = isinstance(args, list) and args[0] == sys.executable and len(args) > 1
        is_known = is_python and (args[1] == "-c" or not str(args[1]).startswith("-"))
        if _spares and is_known and not others and settings.keys() <= SETTINGS and settings.get("start_new_session"):
            return Forked(args, settings)
        return super().__new__(cls)


def install() -> None:
    """Forks spare processes, which end with this one, and has ``subprocess`` use them.

    Raises:
        Command: in a spare process.
    """
    for _ in range(NUM_SPARES):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            raise _command(theirs.detach())
        theirs.close()
        _spares.append((pid, ours))
    subprocess.Popen = Popen  # type: ignore[misc]


def _command(control: int) -> Command:
    """Waits in a spare process until it is to become another."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(control, FIRST_FD)
    # others wait until these are closed everywhere
    os.closerange(FIRST_FD + 1, os.sysconf("SC_OPEN_MAX"))
    with socket.socket(fileno=FIRST_FD) as end:
        request, fds, _, _ = socket.recv_fds(end, MAX_REQUEST_BYTES, MAX_FDS)
    if not request:  # nobody needs it any more
        os._exit(0)
    asked = json.loads(request)
    # The command knows them by these numbers.
    apart = [fcntl.fcntl(fd, fcntl.F_DUPFD, BEYOND_FDS) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(apart, asked["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    return Command(asked["words"])
