"""Calls the registered observers of a kind, which may belong to another package. Their errors never
stop the process that they observe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from lockstep._base.stopping import say

ObserverT = TypeVar("ObserverT")
T = TypeVar("T")


class Observers(Generic[ObserverT]):
    """One instance of each registered observer. An observer that cannot be created is reported, and
    left out. An ``Exception`` that an observer raises when it is called is dropped.

    Args:
        kind: a kind of ``extensions``.
        args: the arguments for creating each observer.
    """

    def __init__(self, kind: str, *args: Any) -> None:
        # Imported here: the look-up takes time, and the fork server should import torch meanwhile.
        from lockstep._base import extensions

        self._all: list[ObserverT] = []
        for name in extensions.names(kind):
            try:
                self._all.append(extensions.load(kind, name)(*args))
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                say(f"WARNING: could not load {name!r} of lockstep.{kind}; continuing without it: {what}")

    def tell(self, what: Callable[[ObserverT], object]) -> None:
        """Calls a method of each observer: ``tell(lambda observer: observer.close())``."""
        for each in self._all:
            with contextlib.suppress(Exception):
                what(each)

    def ask(self, what: Callable[[ObserverT], T | None]) -> T | None:
        """Returns the first non-empty result of a method; None: all are empty."""
        for each in self._all:
            with contextlib.suppress(Exception):
                if answer := what(each):
                    return answer
        return None
