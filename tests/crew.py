"""The fixture ``crew``, for the conftest.py of any folder: ``from crew import crew``."""

import pytest
from stuck import telling, told_after

from lockstep.launch import function
from lockstep.launch.function import launch

STUCK_S = 45  # most tests have 60 seconds


@pytest.fixture
def crew(outlives_tests, request, tmp_path, monkeypatch):
    """``crew(nproc, fn, *args, **settings)``: what ``fn(*args)`` returned in each process, by rank.

    The processes come from one fork server, warm for the whole session, and run in ``tmp_path``.
    """
    monkeypatch.chdir(tmp_path)
    if function._server is None or not function._server.is_alive():
        launch(int, nproc=1)
        outlives_tests(function._server.pid)
        request.session.addfinalizer(function.stop_server)

    def run(nproc, fn, *args, **settings):
        with told_after(STUCK_S, function._server.pid):
            return launch(telling(fn), *args, nproc=nproc, **{"threads": 1, "progress": "off", **settings})

    return run
