"""Promises of how a loop was left: the statement and its line, as the iterator sees them when it is
dropped."""

import argparse
import builtins
import contextlib
import inspect
import io
import sys

import pytest

from lockstep._base.exit_status import ExitStatus
from lockstep._base.tracebacks.frames import OURS
from lockstep._loop.departure import departure, passed_over

pytestmark = pytest.mark.timeout(20)


# The frames between the script's loop and ``departure`` are lockstep's, as with a prepared loader.
ITERATOR = """
class Batches:
    found = None

    def __iter__(self):
        exhausted = False
        try:
            yield from range(3)
            exhausted = True
        finally:
            self.found = departure(4, (5, 1), exhausted=exhausted)
"""


def Batches():  # noqa: N802
    """An iterable of three batches that notes in ``found`` how a loop over it was left."""
    names = {"departure": departure}
    exec(compile(ITERATOR, f"{OURS}_data/batches.py", "exec"), names)
    return names["Batches"]()


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    [number] = [number for number, line in enumerate(lines) if line.strip().endswith(text)]
    return f"{__file__}:{first + number} in {function.__name__}"


def by_break(batches):
    for _ in batches:
        break


def by_break_in_a_line(batches):
    for batch in batches:
        if batch == 1:
            print(end="")
            break


def by_return(batches):
    for batch in batches:
        if batch == 1:
            return batch
    return None


def by_an_error(batches):
    for _ in batches:
        raise ValueError("of the script")


def inner():
    raise KeyError("deeper")


def by_an_error_further_in(batches):
    for _ in batches:
        inner()


def to_its_end(batches):
    for _ in batches:
        pass


@pytest.mark.parametrize(
    ("loop", "cause", "place"),
    [
        (by_break, "break", (by_break, "break")),
        (by_return, "return", (by_return, "return batch")),
        (by_an_error, "exception", (by_an_error, 'raise ValueError("of the script")')),
        (by_an_error_further_in, "exception", (inner, 'raise KeyError("deeper")')),
        (to_its_end, "its own end", (to_its_end, "for _ in batches:")),
    ],
)
def test_the_cause_and_the_line_are_found(loop, cause, place):
    batches = Batches()
    with contextlib.suppress(ValueError, KeyError):
        loop(batches)
    assert (batches.found.cause, batches.found.place) == (cause, line_of(*place))
    assert (batches.found.step, batches.found.next_step, batches.found.next_phase) == (4, 5, 1)


@pytest.fixture
def noted_exits(monkeypatch):
    """Exits are noted, as in each process that has joined."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # ``exit`` and ``quit`` close it
    noting = ExitStatus()
    yield
    noting.end()


def by_sys_exit(batches):
    for _ in batches:
        sys.exit(3)


def by_exit(batches):
    for _ in batches:
        builtins.exit()


def by_quit(batches):
    for _ in batches:
        builtins.quit("text")


def leave():
    sys.exit(0)


def by_an_exit_further_in(batches):
    for _ in batches:
        leave()


def by_an_exit_within_a_library(batches):
    for _ in batches:
        argparse.ArgumentParser().exit()


def leave_by_key(batch):
    sys.exit(batch)


def by_an_exit_that_a_library_calls(batches):
    for batch in batches:
        min([batch, batch], key=leave_by_key)


def by_an_exit_in_a_context(batches):
    for _ in batches:
        with contextlib.nullcontext():
            leave()


def by_an_error_behind_an_exit(batches):
    for _ in batches:
        try:
            leave()
        except SystemExit:
            raise ValueError("in its place") from None


def by_the_exception_alone(batches):
    for _ in batches:
        raise SystemExit(1)


@pytest.mark.parametrize(
    ("loop", "cause", "place"),
    [
        (by_sys_exit, "sys.exit", (by_sys_exit, "sys.exit(3)")),
        (by_exit, "sys.exit", (by_exit, "builtins.exit()")),
        (by_quit, "sys.exit", (by_quit, 'builtins.quit("text")')),
        (by_an_exit_further_in, "sys.exit", (leave, "sys.exit(0)")),
        (by_an_exit_within_a_library, "sys.exit", (by_an_exit_within_a_library, "argparse.ArgumentParser().exit()")),
        (by_an_exit_that_a_library_calls, "sys.exit", (leave_by_key, "sys.exit(batch)")),
        (by_an_exit_in_a_context, "sys.exit", (leave, "sys.exit(0)")),
        (by_an_error_behind_an_exit, "exception", (by_an_error_behind_an_exit, 'ValueError("in its place") from None')),
        (by_the_exception_alone, "exception", (by_the_exception_alone, "raise SystemExit(1)")),
    ],
)
def test_an_exit_is_told_from_an_error_wherever_it_is_called(noted_exits, loop, cause, place):
    batches = Batches()
    with pytest.raises((SystemExit, ValueError)):
        loop(batches)
    assert (batches.found.cause, batches.found.place) == (cause, line_of(*place))


def test_a_statement_among_others_of_its_line_is_found():
    batches = Batches()
    by_break_in_a_line(batches)
    assert batches.found.cause == "break"


def test_an_iterator_that_is_dropped_has_no_known_cause():
    batches = Batches()
    iterator = iter(batches)
    next(iterator)
    iterator = None
    assert batches.found.cause == ""


def test_a_step_without_a_loop_over_its_shards_is_passed_over_at_the_line_of_the_script():
    found = passed_over(6)
    assert (found.step, found.cause, found.next_step, found.next_phase) == (6, "continue", 6, 0)
    assert found.place.startswith(f"{__file__}:")
