"""The pytest plug-in: a test that is marked ``lockstep`` is run by ``same_at``.

pytest imports this module when it starts, in every project of an environment with lockstep: what
else is needed is imported when a marked test runs.
"""

from __future__ import annotations

import inspect

import pytest

_MARKER = (
    "lockstep(worlds, kill=False, shards=None, compare_result=True, limit_s=120, **settings): run the test on each number of "
    "processes, and compare every step"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("lockstep").addoption(
        "--lockstep-worlds",
        metavar="W,...",
        help="numbers of processes for all tests marked lockstep, which override their worlds: 1,2",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)
    if config.getoption("--lockstep-worlds") is not None:
        _worlds_of_option(config)


def _worlds_of_option(config: pytest.Config) -> tuple[int, ...] | None:
    given: str | None = config.getoption("--lockstep-worlds")
    if given is None:
        return None
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise pytest.UsageError(
            f"--lockstep-worlds {given}: expected numbers of processes, each 1 or more, separated by commas: 1,2"
        )
    return tuple(map(int, parts))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test that this plug-in cannot run, before any of it runs."""
    if item.get_closest_marker("lockstep") is not None and (reason := _why_not(item)):
        pytest.fail(f"{item.name} is marked lockstep, but {reason}", pytrace=False)


def _why_not(item: pytest.Item) -> str:
    """Why this plug-in cannot run a test; empty: it can."""
    if not isinstance(item, pytest.Function) or type(item).runtest is not pytest.Function.runtest:
        return (
            f"it is a {type(item).__name__}, which runs itself (unittest.TestCase, or another plug-in). Write it as a "
            "function or as a method of a plain class, or call lockstep.testing.same_at() in it"
        )
    if inspect.iscoroutinefunction(item.obj):
        return "it is a coroutine. Use `def` instead of `async def`, and asyncio.run() in it"
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on each number of processes."""
    marker = pyfuncitem.get_closest_marker("lockstep")
    if marker is None:
        return None
    from lockstep._base.errors import LockstepError
    from lockstep.testing._marked import run_marked

    function = pyfuncitem.obj
    values = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(function).parameters if name in pyfuncitem.funcargs
    }
    try:
        run_marked(pyfuncitem.name, function, values, marker.args, marker.kwargs, _worlds_of_option(pyfuncitem.config))
    except LockstepError as error:
        # The frames between pytest and the ranks tell nothing: the message has those of the test.
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    return True
