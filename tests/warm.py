"""The fixture ``run_here``, for the conftest.py of any folder: ``from warm import run_here``."""

import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from crew import warm_server

from lockstep._cli.main import main
from lockstep._launch import script as launch_script
from lockstep._launch.server import ForkServer


class Lent:
    """A fork server that outlives the launch that has it, unless it is closed because workers are
    not to live on."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._keys: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def start_worker(self, *args: Any) -> int:
        key = self._server.start_worker(*args)
        self._keys.add(key)
        return key

    def receive(self) -> dict[str, Any]:
        message = self._server.receive()
        if "status" in message or "error" in message:
            self._keys.discard(message["key"])
        return message

    def close(self) -> Any:
        return self._server.close() if self._keys or not self._server.is_alive() else set()


@contextlib.contextmanager
def in_place(fd: int, path: Path, flags: int) -> Iterator[None]:
    """This file descriptor is the file, until the end of the block."""
    kept, file = os.dup(fd), os.open(path, flags, 0o600)
    try:
        os.dup2(file, fd)
        yield
    finally:
        os.dup2(kept, fd)
        os.close(kept)
        os.close(file)


def run_on(
    server: ForkServer,
    directory: Path,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    verb: str = "run",
) -> subprocess.CompletedProcess[str]:
    """``lockstep run`` with these words, in this process but for its fork server, and in this
    directory."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        streams = [Path(place, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin or "")
        patch.chdir(directory)
        patch.setattr(launch_script, "take_server", lambda: Lent(server))
        patch.setattr("lockstep._launch.server.start_early", lambda: None)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        for fd, path in enumerate(streams):
            stack.enter_context(in_place(fd, path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        for name, fd in (("stdout", 1), ("stderr", 2)):
            patch.setattr(sys, name, stack.enter_context(os.fdopen(os.dup(fd), "w", buffering=1)))
        with pytest.raises(SystemExit) as ended:
            main([verb, *command])
        out, err = (path.read_text() for path in streams[1:])
    # a text, as of sys.exit("why"), is kept: Python would print it, and end with 1
    status: Any = ended.value.code or 0
    return subprocess.CompletedProcess(command, status, out, err)


@pytest.fixture
def run_here(
    outlives_tests: Callable[[int], None], request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_here(source_or_path, *options, args=())``: ``lockstep run OPTIONS SCRIPT``, in
    ``tmp_path``, to its end.

    By a launcher in this process, and on the fork server that is warm for the whole session: in a
    tenth of the time. What PyTorch and others read when they are loaded is that of the session. A
    ``str`` is source, a ``Path`` a file, and for ``None`` the options have the script and its
    arguments. ``env`` is added to the environment, ``stdin`` is what is read."""

    def run(
        script: str | Path | None,
        *options: str,
        args: Sequence[object] = (),
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        if isinstance(script, str):
            source, script = script, tmp_path / "script.py"
            script.write_text(textwrap.dedent(source))
        words = [*options, *map(str, [] if script is None else [script, *args])]
        return run_on(warm_server(request, outlives_tests), tmp_path, words, env=env, stdin=stdin)

    return run
