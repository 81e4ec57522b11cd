"""An iterator knows, as it is dropped, whether an error leaves the loop over it."""

import itertools
import sys
import types

import pytest

from lockstep._base.unwinding import frame_left_by_error, may_be_caught

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


class Asked:
    """An iterator that notes for each item whether an error might be caught."""

    def __init__(self, told):
        self._told = told
        self._numbers = iter(range(3))

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self._numbers)
        self._told.append(may_be_caught(sys._getframe(1)))
        return number


INSIDE = "def train():\n    for _ in todo:\n        pass\n"
WHERE = {
    "for _ in todo: pass": False,
    INSIDE + "train()": False,
    "def steps():\n    yield from todo\nfor _ in steps(): pass": False,
    "def steps():\n    for _ in todo:\n        yield 1\nfor _ in steps(): pass": False,
    "for _ in range(3):\n    try: int('x')\n    except ValueError: pass\nfor _ in todo: pass": False,
    "for _ in todo:\n    try: int('x')\n    except ValueError: pass": False,
    "try: int('x')\nexcept ValueError:\n    for _ in todo: pass": False,
    "try:\n    for _ in todo: pass\nexcept ValueError: pass": True,
    "try:\n    for _ in todo: pass\nexcept: pass": True,
    "try:\n    for _ in todo: pass\nfinally: str()": True,
    "import contextlib\nwith contextlib.suppress(ValueError):\n    for _ in todo: pass": True,
    INSIDE + "try: train()\nexcept ValueError: pass": True,
    "def steps():\n    for _ in todo:\n        yield 1\ntry:\n    for _ in steps(): pass\nexcept ValueError: pass": True,
    "next(todo)": True,
    "list(todo)": True,
    "[_ for _ in todo]": False,
}


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.parametrize("program", WHERE, ids=repr)
def test_it_is_known_whether_an_error_of_a_loop_might_be_caught(program, held, monkeypatch):
    told, main = [], types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.todo = iter(held(Asked(told)))
    exec(program, vars(main))
    assert set(told) == {WHERE[program]}
