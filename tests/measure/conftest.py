"""A warm fork server, on which a function runs in any number of processes."""

import pytest

from lockstep.launch import function
from lockstep.launch.function import launch


@pytest.fixture
def crew(outlives_tests, tmp_path, monkeypatch):
    """``crew(nproc, fn, *args, **settings)``: what ``fn(*args)`` returned in each process, by rank."""
    monkeypatch.chdir(tmp_path)
    if function._server is None or not function._server.is_alive():
        launch(int, nproc=1)
        outlives_tests(function._server.pid)

    def run(nproc, fn, *args, **settings):
        return launch(fn, *args, nproc=nproc, **{"threads": 1, "progress": "off", **settings})

    return run


@pytest.fixture(scope="session", autouse=True)
def _stop_at_the_end():
    yield
    function.stop_server()
