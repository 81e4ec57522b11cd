"""The fixtures ``crew``, ``standing_crew`` and ``check_same``, for the conftest.py of any folder:
``from crew import crew``."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standing import StandingCrew
from stuck import telling, told_after

from lockstep._launch.function import launch
from lockstep._launch.private import private_directory
from lockstep._launch.server import ForkServer, drop_server, kept_server
from lockstep._launch.spec import Call, LaunchSpec
from lockstep._sync import exact
from lockstep.testing import same_at

STUCK_S = 150  # less than the limit of a test, and more than one takes on a slow machine
MOST_STANDING = 4  # processes of a crew that stays
_standing: dict[
    tuple[int, int], StandingCrew
] = {}  # crews, by the fork server that they come from, and their number of processes


def in_buckets(fn: Callable[..., Any], *args: Any) -> Any:
    """``fn(*args)``, with gradients that are too large for one message."""
    exact.MAX_SINGLE_MESSAGE_BYTES = 0
    return fn(*args)


def end_server() -> None:
    """With it end the crews that stay."""
    while _standing:
        _standing.popitem()[1].close()
    drop_server()


def warm_server(request: pytest.FixtureRequest, outlives_tests: Callable[[int], None]) -> ForkServer:
    """The fork server of ``launch``, which stays for the whole session."""
    if kept_server() is None:
        end_server()
        launch(int, nproc=1)
        request.session.addfinalizer(end_server)
    server = kept_server()
    assert server is not None
    outlives_tests(server.pid)
    return server


def arranged(nproc: int, fn: Callable[..., Any], settings: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function and the settings for a crew: three processes train as larger models than those
    of tests do."""
    if nproc == 3:
        fn = functools.partial(in_buckets, fn)
    return fn, {"threads": 1, "progress": "off", **settings}


@pytest.fixture
def crew(
    outlives_tests: Callable[[int], None], request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """``crew(nproc, fn, *args, **settings)``: what ``fn(*args)`` returned in each process, by rank.

    The processes are forked for it by ``lockstep.launch``, and run in ``tmp_path``.
    """
    monkeypatch.chdir(tmp_path)
    warm_server(request, outlives_tests)

    def run(nproc: int, fn: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        fn, settings = arranged(nproc, fn, settings)
        with told_after(STUCK_S, warm_server(request, outlives_tests).pid):
            return launch(telling(fn), *args, nproc=nproc, **settings)

    return run


@pytest.fixture
def check_same(
    outlives_tests: Callable[[int], None], request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """``check_same(worlds, fn, *args, **more)``: ``lockstep.testing.same_at`` with one thread a
    process, in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    warm_server(request, outlives_tests)
    return functools.partial(same_at, threads=1)


@pytest.fixture
def standing_crew(
    crew: Callable[..., Any],
    outlives_tests: Callable[[int], None],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Any]:
    """The same for what ends well, by processes that stay for the next test: each joins a run again
    and again."""

    def run(nproc: int, fn: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        if nproc > MOST_STANDING:
            return crew(nproc, fn, *args, **settings)
        server = warm_server(request, outlives_tests)
        key = server.pid, nproc
        if key in _standing and not _standing[key].is_there():
            end_server()
            server = warm_server(request, outlives_tests)
            key = server.pid, nproc
        if key not in _standing:
            _standing[key] = StandingCrew(server, nproc, tmp_path_factory.mktemp("crew") / "private")
        fn, settings = arranged(nproc, fn, settings)
        try:
            with told_after(STUCK_S, server.pid), private_directory() as private_dir:
                spec = LaunchSpec(program=Call(payload=b""), nproc=nproc, private_dir=private_dir, settings=settings)
                return _standing[key].run(spec, fn, args)
        except BaseException:
            end_server()
            raise

    return run
