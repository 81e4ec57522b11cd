"""The fixture ``crew``, for the conftest.py of any folder: ``from crew import crew``."""

import functools

import pytest
from stuck import telling, told_after

from lockstep.launch import function
from lockstep.launch.function import launch
from lockstep.sync import exact, together

STUCK_S = 45  # most tests have 60 seconds


def in_buckets(fn, *args):
    """``fn(*args)``, with gradients that are too large for one message."""
    together.MOST_BYTES = exact.MOST_TOGETHER = 0
    return fn(*args)


@pytest.fixture
def crew(outlives_tests, request, tmp_path, monkeypatch):
    """``crew(nproc, fn, *args, **settings)``: what ``fn(*args)`` returned in each process, by rank.

    The processes come from one fork server, warm for the whole session, and run in ``tmp_path``. Three of them, and those with
    the strategy ``ddp, in buckets``, train as larger models than those of tests do.
    """
    monkeypatch.chdir(tmp_path)
    if function._server is None or not function._server.is_alive():
        launch(int, nproc=1)
        outlives_tests(function._server.pid)
        request.session.addfinalizer(function.stop_server)

    def run(nproc, fn, *args, **settings):
        is_large = settings.get("strategy") == "ddp, in buckets"
        if is_large:
            settings = {**settings, "strategy": "ddp"}
        if is_large or nproc == 3:
            fn = functools.partial(in_buckets, fn)
        with told_after(STUCK_S, function._server.pid):
            return launch(telling(fn), *args, nproc=nproc, **{"threads": 1, "progress": "off", **settings})

    return run
