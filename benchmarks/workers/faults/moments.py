"""When a fault happens in a script: each moment has its functions, by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

AT_STEP = 30

Function = TypeVar("Function", bound=Callable[..., Any])
Moment = dict[str, Callable[..., Any]]

BEFORE_JOINING: Moment = {}
"""On the culprit, before the ranks meet."""
IN_FORWARD: Moment = {}
"""On the culprit, before the forward pass of step AT_STEP."""
AFTER_STEP: Moment = {}
"""On the culprit, after that step."""
ON_ALL_RANKS: Moment = {}
"""On every rank after that step; called with whether it is the culprit."""
BY_SAMPLE: Moment = {}
"""Faults on the culprit, in its dataset, at some sample. There is a loader worker."""
FIRST_FORWARD: Moment = {}
"""On the culprit, before the first forward pass."""
EACH_FORWARD: Moment = {}
"""On the culprit, before each forward pass."""
EACH_BACKWARD: Moment = {}
"""On the culprit, after each backward pass and before the optimizer's step."""
EACH_STEP: Moment = {}
"""On the culprit, after each step; called with its number."""
AT_THE_END: Moment = {}
"""On the culprit, after the loop, which all ranks leave after step AT_STEP."""


def at(moment: Moment) -> Callable[[Function], Function]:
    """Have a function called at a moment, by its name."""

    def register(function: Function) -> Function:
        moment[function.__name__] = function
        return function

    return register


def shows() -> None:
    """Writes down when the fault begins, the first time, so that the time until it is named can be
    measured."""
    try:
        with Path("fault-at").open("x") as file:
            file.write(repr(time.time()))
    except FileExistsError:
        pass
