"""Fixtures for launchers that are processes of their own, for the conftest.py of any folder (``from
launchers import ...``)."""

import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nursery import Launched, Nursery

from lockstep._tools.trials import trial


@pytest.fixture(scope="session")
def nursery(outlives_tests: Callable[[int], None]) -> Iterator[Nursery]:
    """``nursery.start(words, cwd=, stdout=, stderr=)``: ``lockstep run`` as a process of its own,
    which imports nothing anew.

    What PyTorch and others read when they are imported is that of the session.
    """
    made = Nursery()
    outlives_tests(made.pid)
    yield made
    made.close()


@pytest.fixture
def start_launcher(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """``start_launcher(*words)``: such a launcher in ``tmp_path``, with pipes, started and not
    waited for."""
    started: list[Launched] = []

    def start(
        *words: object,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
    ) -> Launched:
        started.append(nursery.start(list(map(str, words)), cwd=tmp_path, stdout=stdout, stderr=stderr, env=env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_cold(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start_cold(source_or_path, *options, args=())``: the command itself, in ``tmp_path``,
    started and not waited for.

    It imports all that it needs, as its fork server does: seconds of the processor. ``env`` is
    added to the environment."""
    started: list[subprocess.Popen[str]] = []

    def start(
        script: str | Path,
        *options: str,
        args: Sequence[object] = (),
        env: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> subprocess.Popen[str]:
        if isinstance(script, str):
            source, script = script, tmp_path / "script.py"
            script.write_text(textwrap.dedent(source))
        command = [sys.executable, "-m", "lockstep._cli.main", "run", *options, str(script), *map(str, args)]
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **popen,
        }
        started.append(subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **(env or {})}, text=True, **streams))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


@pytest.fixture
def python_here(nursery: Nursery, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python_here(script, *args)``: a script, run as ``python`` does it, in ``tmp_path``, to its
    end.

    By a process that imports nothing anew. ``env`` is added to the environment.
    """

    def run(
        *words: object, cwd: Path = tmp_path, env: Mapping[str, str] | None = None, timeout: float = 150.0
    ) -> subprocess.CompletedProcess[str]:
        command = list(map(str, words))
        process = nursery.start(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, is_python=True)
        try:
            out, err = process.communicate(timeout)
        finally:
            process.kill()
        assert process.returncode is not None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture
def warm_trials(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of verify and compare that ``lockstep run`` starts come from the nursery.

    They have the hash seed of the session, and ``trial.sweep`` does not see what they leave behind.
    """

    def start(
        command: list[str], *, stdout: Any, env: Mapping[str, str], **options: Any
    ) -> Launched | subprocess.Popen[bytes]:
        if Path(command[1]).name != "lockstep" or command[2] != "run":
            return subprocess.Popen(command, stdout=stdout, env=env, **options)
        return nursery.start(command[3:], cwd=os.getcwd(), stdout=stdout, stderr=stdout, env=env)  # noqa: PTH109

    monkeypatch.setattr(trial, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": start}))
