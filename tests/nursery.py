"""Launchers that are processes of their own and have what they import from the one that they are
forked from.

``lockstep run`` between nodes takes 4 s of the processor where it is started as a command: it
imports torch, and so does its fork server.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

NUMBER = struct.Struct("i")
COMM = Path("/proc/self/comm")


NAME = "nursery"
"""Of the process that launchers are forked from, and of those that wait for them, as the kernel
shows it."""


class Nursery:
    """The process that launchers are forked from. ``popen`` starts it, elsewhere if that is not
    ``subprocess.Popen``. ``imports``: modules that it imports too."""

    def __init__(self, popen: Callable[..., Any] = subprocess.Popen, imports: Sequence[str] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *imports]
            self._process = popen(
                command, cwd="/", stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self.pid = self._process.pid

    def start(
        self,
        words: Sequence[str],
        *,
        cwd: str | Path,
        stdout: Any,
        stderr: Any,
        env: Mapping[str, str] | None = None,
        is_python: bool = False,
    ) -> "Launched":
        """``lockstep run`` with these words, and this process's environment, to which ``env`` is
        added.

        Args:
            stdout: a file, or ``subprocess.PIPE``.
            stderr: the same.
            is_python: the words are a script and its arguments, to be run as ``python`` does it.
        """
        ours, theirs = os.pipe()
        environ = {**os.environ, **(env or {})}
        asked = json.dumps({"words": words, "cwd": str(cwd), "environ": environ, "is_python": is_python})
        with contextlib.ExitStack() as stack:
            read, written = zip(*(_open(stream, stack) for stream in (stdout, stderr)), strict=True)
            socket.send_fds(self._socket, [asked.encode()], [theirs, *written])
        os.close(theirs)
        return Launched(ours, *read)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(100)


def _open(stream: Any, stack: contextlib.ExitStack) -> tuple[IO[str] | None, int]:
    """What is read here of a stream, if it is a pipe, and the descriptor that is written to, open
    in the stack's block."""
    if stream is not subprocess.PIPE:
        return None, stream.fileno()
    read, written = os.pipe()
    stack.callback(os.close, written)
    return os.fdopen(read), written


class Launched:
    """What is used of ``subprocess.Popen``. A pipe tells the process's number, and its status when
    it has ended."""

    def __init__(self, pipe: int, stdout: IO[str] | None = None, stderr: IO[str] | None = None) -> None:
        self._pipe = pipe
        self.pid: int = NUMBER.unpack(os.read(pipe, NUMBER.size))[0]
        self.returncode: int | None = None
        self.stdout, self.stderr = stdout, stderr

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._pipe], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("lockstep run", cast("float", timeout))
            # nothing: it was killed with all that there was around it
            told = os.read(self._pipe, NUMBER.size)
            self.returncode = NUMBER.unpack(told)[0] if told else -signal.SIGKILL
            os.close(self._pipe)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What comes through the pipes until they end, once, and is "" from then on. See
        ``subprocess.Popen``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        texts = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            texts[number] = stream.read()
            stream.close()

        readers = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in enumerate((self.stdout, self.stderr))
            if stream and not stream.closed
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(deadline and max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("lockstep run", cast("float", timeout))
        self.wait(deadline and max(0.0, deadline - time.monotonic()))
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may have ended, and the pipe is yet to tell it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Child:
    """A process that was forked, for ``ForkServer``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        return cast("int", self._wait(0))

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


def main(control: socket.socket, imports: Sequence[str]) -> tuple[int | None, socket.socket | None]:
    """Fork launchers until nobody can ask any more. Only they return, with nothing on their
    stack."""
    # before torch, as in a fork server: what it has workers do at their end comes last
    from lockstep._launch import serve
    from lockstep._launch.server import WARM

    COMM.write_text(NAME)
    for name in (
        *serve.PRELOAD,
        *WARM,
        "lockstep._cli.run",
        "lockstep._launch.script",
        "lockstep._launch.elastic.run",
        *imports,
    ):
        importlib.import_module(name)
    # looks for them, once for all
    importlib.import_module("lockstep._base.extensions").names("observers")
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, lambda *_: reap())  # those that wait for launchers
    while True:
        asked, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return begin(json.loads(asked), *fds)


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def begin(asked: dict[str, Any], pipe: int, stdout: int, stderr: int) -> tuple[int | None, socket.socket | None]:
    launcher = os.fork()
    if launcher:
        os.write(pipe, NUMBER.pack(launcher))
        os.write(pipe, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])))
        os._exit(0)
    os.close(pipe)
    COMM.write_text("python")
    os.setsid()
    for fd, target in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    if asked["is_python"]:
        sys.argv = asked["words"]
        return None, None
    sys.argv = ["lockstep", "run", *asked["words"]]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = os.fork()
    (theirs if server else ours).close()
    return server, ours if server else theirs


def run(server: int | None, end: socket.socket | None) -> None:
    """Be the launcher, with that fork server; or, if it is 0, be the server; or, if there is none,
    a script."""
    from lockstep._launch import serve
    from lockstep._launch.server import ForkServer, keep_server, server_environ

    del sys.path[0]
    if server is None:
        run_as_python_does()
        return
    assert end is not None
    if not server:
        os.setsid()
        os.environ.update(server_environ())
        sys.orig_argv = [sys.executable, "-c", ""]
        serve.main(end.detach())
    keep_server(ForkServer(Child(server), end))
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    importlib.import_module("lockstep._cli.main").main()


def run_as_python_does() -> None:
    import torch

    if number := os.environ.get("OMP_NUM_THREADS"):  # what OpenMP reads when it is loaded
        torch.set_num_threads(int(number))
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    run(*main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]))
