"""Calling what is registered for a kind of observers, and may be another package's: whom they
observe matters more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from lockstep._base.stopping import say

ObserverT = TypeVar("ObserverT")
T = TypeVar("T")


class Observers(Generic[ObserverT]):
    """One of each that is registered. One that cannot be made is reported, and left out; an
    ``Exception`` that one raises when it is called is dropped.

    Args:
        kind: see ``extensions``.
        args: those with which each is made.
    """

    def __init__(self, kind: str, *args: Any) -> None:
        # only here: looking for them takes time, while the fork server imports torch
        from lockstep._base import extensions

        self._all: list[ObserverT] = []
        for name in extensions.names(kind):
            try:
                self._all.append(extensions.load(kind, name)(*args))
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                say(f"WARNING: could not load {name!r} of lockstep.{kind}; continuing without it: {what}")

    def tell(self, what: Callable[[ObserverT], object]) -> None:
        """Call a method of each: ``tell(lambda observer: observer.close())``."""
        for each in self._all:
            with contextlib.suppress(Exception):
                what(each)

    def ask(self, what: Callable[[ObserverT], T | None]) -> T | None:
        """The first answer of a method that is not empty; None: all are."""
        for each in self._all:
            with contextlib.suppress(Exception):
                if answer := what(each):
                    return answer
        return None
