"""Fixtures for launchers that are processes of their own, for the conftest.py of any folder (``from
launchers import ...``)."""

import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
from nursery import Nursery

from lockstep._tools.trials import trial


@pytest.fixture(scope="session")
def nursery(outlives_tests):
    """``nursery.start(words, cwd=, stdout=, stderr=)``: ``lockstep run`` as a process of its own,
    which imports nothing anew.

    What PyTorch and others read when they are imported is that of the session.
    """
    made = Nursery()
    outlives_tests(made.pid)
    yield made
    made.close()


@pytest.fixture
def start_launcher(nursery, tmp_path):
    """``start_launcher(*words)``: such a launcher in ``tmp_path``, with pipes, started and not
    waited for."""
    started = []

    def start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=None):
        words = list(map(str, words))
        started.append(nursery.start(words, cwd=tmp_path, stdout=stdout, stderr=stderr, env=env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_cold(tmp_path):
    """``start_cold(source_or_path, *options, args=())``: the command itself, in ``tmp_path``,
    started and not waited for.

    It imports all that it needs, as its fork server does: seconds of the processor. ``env`` is
    added to the environment."""
    started = []

    def start(script, *options, args=(), env=None, **popen):
        if isinstance(script, str):
            source, script = script, tmp_path / "script.py"
            script.write_text(textwrap.dedent(source))
        command = [sys.executable, "-m", "lockstep._cli.main", "run", *options, str(script), *map(str, args)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
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
def python_here(nursery, tmp_path):
    """``python_here(script, *args)``: a script, run as ``python`` does it, in ``tmp_path``, to its
    end.

    By a process that imports nothing anew. ``env`` is added to the environment.
    """

    def run(*words, cwd=tmp_path, env=None, timeout=150.0):
        words = list(map(str, words))
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = nursery.start(words, cwd=cwd, env=env, is_python=True, **streams)
        try:
            out, err = process.communicate(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    return run


@pytest.fixture
def warm_trials(nursery, monkeypatch):
    """Trials of verify and compare that ``lockstep run`` starts come from the nursery.

    They have the hash seed of the session, and ``trial.sweep`` does not see what they leave behind.
    """

    def start(command, *, stdout, env, **options):
        if Path(command[1]).name != "lockstep" or command[2] != "run":
            return subprocess.Popen(command, stdout=stdout, env=env, **options)
        return nursery.start(command[3:], cwd=os.getcwd(), stdout=stdout, stderr=stdout, env=env)  # noqa: PTH109

    monkeypatch.setattr(trial, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": start}))
