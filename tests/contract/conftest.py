"""A warm fork server for the whole session, on which a function runs in any number of processes."""

import pytest

from lockstep.launch import function
from lockstep.launch.function import launch, stop_server


@pytest.fixture(scope="session")
def _warm(outlives_tests):
    launch(int, nproc=1)
    outlives_tests(function._server.pid)
    yield
    stop_server()


@pytest.fixture
def crew(_warm, tmp_path, monkeypatch):
    """``crew(nproc, fn, *args, **settings)``: what ``fn(*args)`` returned in each process, by rank."""
    monkeypatch.chdir(tmp_path)

    def run(nproc, fn, *args, **settings):
        return launch(fn, *args, nproc=nproc, **{"threads": 1, "progress": "off", **settings})

    return run
