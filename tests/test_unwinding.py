"""An iterator knows, as it is dropped, whether an error leaves the loop over it."""

import itertools
import sys

import pytest

from lockstep.base.unwinding import frame_left_by_error

pytestmark = [pytest.mark.quick, pytest.mark.timeout(30)]


class Dropped:
    """An iterator that notes how it is dropped."""

    def __init__(self, told):
        self._told = told
        self._numbers = iter(range(5))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._numbers)

    def __del__(self):
        self._told.append(frame_left_by_error(sys._getframe(1)))


def in_generator(numbers):
    """As tqdm does."""
    try:
        for number in numbers:
            yield number
            str(number)
    finally:
        str(numbers)


def by_delegation(numbers):
    yield from numbers


HELD = {
    "itself": lambda numbers: numbers,
    "enumerate": enumerate,
    "zip": lambda numbers: zip(numbers, itertools.count(), strict=False),
    "map": lambda numbers: map(str, numbers),
    "a generator": in_generator,
    "a generator that delegates": by_delegation,
    "two generators": lambda numbers: in_generator(in_generator(numbers)),
    "a generator in enumerate": lambda numbers: enumerate(in_generator(numbers)),
}
ERRORS = [ValueError("x"), KeyboardInterrupt(), SystemExit(1), StopIteration(), GeneratorExit()]


def left_by(error, held, told):
    for _ in held(Dropped(told)):
        raise error


def left_in_c(held, told):
    for _ in held(Dropped(told)):
        int("no number")


def left_by_exit(held, told):
    for _ in held(Dropped(told)):
        sys.exit(1)


def left_below(held, told):
    def fail():
        raise ValueError

    for _ in held(Dropped(told)):
        for _ in range(3):
            fail()


def left_by_break(held, told):
    for _ in held(Dropped(told)):
        break


def left_by_break_after_errors(held, told):
    kept = []
    for number, _ in enumerate(held(Dropped(told))):
        try:
            int("no number")
        except ValueError as error:
            kept.append(error)
        if number == 2:
            break
    told.append(None)


def left_by_return(held, told):
    for _ in held(Dropped(told)):
        for _ in range(2):
            return


def left_at_its_end(held, told):
    for _ in held(Dropped(told)):
        pass


def left_by_who_reads_the_loop(held, told):
    def loop():
        for _ in held(Dropped(told)):
            yield 1

    for _ in loop():
        break


def left_by_an_error_of_who_reads_the_loop(held, told):
    def loop():
        for _ in held(Dropped(told)):
            yield 1

    for _ in loop():
        raise ValueError


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.parametrize(
    "left",
    [left_by_break, left_by_break_after_errors, left_by_return, left_at_its_end, left_by_who_reads_the_loop],
)
def test_a_loop_that_ends_well_is_left_by_no_error(held, left):
    told = []
    for _ in range(2):
        left(held, told)
    assert told, "the iterator stays"
    assert told == [None] * len(told)


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.parametrize("left", [left_in_c, left_by_exit, left_below, left_by_an_error_of_who_reads_the_loop])
def test_an_error_is_found_on_its_way_through_the_frame_of_the_loop(held, left):
    told = []
    for _ in range(2):
        with pytest.raises((ValueError, SystemExit)):
            left(held, told)
    assert [frame.f_code.co_name for frame in told] == [left.__name__] * 2


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_of_any_kind_is_found(error):
    told = []
    with pytest.raises(type(error)):
        left_by(error, HELD["a generator"], told)
    assert [frame.f_code.co_name for frame in told] == ["left_by"]
