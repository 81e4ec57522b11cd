"""What is promised for an idiom: ``@equal()``, ``@refused(...)`` or ``@differs(...)`` above its
function.

The function gets the team, and returns what must be the same. Its name is the idiom's, its
docstring what a page calls it. One that does something before it joins gets a function instead,
named ``join``.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import lockstep  # noqa: F401 - whoever reads a topic (lockstep check) sees that it trains with lockstep

IDIOMS = []


@dataclass(frozen=True)
class Equal:
    """Weights, buffers, optimizer state and returned numbers are bit-identical on every rank,
    for any number of ranks."""

    plain: bool = False
    """Also equal to the same loop without lockstep, on one process with one shard."""


@dataclass(frozen=True)
class Refused:
    """It ends in an error of lockstep's with this code."""

    code: str
    names: str = ""
    """What the message must name, if the code alone is of several faults."""
    alone: bool = True
    """Whether also by a process that is alone. (Otherwise it runs there: only other processes can
    detect it.)"""


@dataclass(frozen=True)
class Differs:
    """It runs, and gives different results on other numbers of processes, which is tested too."""

    why: str
    """The cause, and what to write instead, for the page."""


@dataclass(frozen=True)
class Idiom:
    """A function that trains in one of the ways that people do."""

    function: Callable
    promise: Equal | Refused | Differs
    found: str = ""
    """What a reading finds in it (``lockstep check``): codes. LS1: results depend on the number
    of processes; LS2: starts over on a resume; LS3: misuse."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of ``join``."""

    @property
    def name(self):
        return self.function.__name__

    @property
    def what(self):
        """The name on the page: the docstring without its full stop."""
        return self.function.__doc__.removesuffix(".")

    @property
    def topic(self):
        """The module that it is in."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def line(self):
        """Where it begins."""
        return self.function.__code__.co_firstlineno

    @property
    def joins(self):
        """Whether it joins by itself."""
        return "join" in inspect.signature(self.function).parameters


def equal(*, plain=False, **about):
    return promised(Equal(plain), **about)


def refused(*, code, names="", alone=True, **about):
    """By an error with this code, which names this."""
    return promised(Refused(code, names, alone), **about)


def differs(why, **about):
    return promised(Differs(why), **about)


def promised(promise, *, found="", **settings):
    def note(function):
        IDIOMS.append(Idiom(function, promise, found, settings))
        return function

    return note
