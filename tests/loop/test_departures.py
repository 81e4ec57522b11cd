"""Promises of how a loop was left: the statement and its line, as the iterator sees them when it is
dropped."""

import contextlib
import inspect

import pytest

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
