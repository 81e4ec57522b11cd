"""Notifies a listener only of the steps that a replay shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from lockstep.listener import EVENTS, Listener

_ALWAYS = ("prepared", "prepared_loader", "made_loader", "begin_pass", "end_pass", "end_run")
"""Events that do not belong to one step."""


class FromStep(Listener):
    """Notifies another listener of what happens from a step on, and of the events of the whole run.

    Args:
        listener: the other one.
        first: the step.
    """

    def __init__(self, listener: Listener, first: int) -> None:
        self._first = first
        self._begin_step = listener.begin_step
        self._has_begun = False
        self.stage = listener.stage
        for name in EVENTS:
            if name in _ALWAYS:
                setattr(self, name, getattr(listener, name))
            elif name != "begin_step":
                setattr(self, name, self._later(getattr(listener, name)))

    @override
    def begin_step(self, step: int) -> None:
        self._has_begun = self._has_begun or step >= self._first
        if self._has_begun:
            self._begin_step(step)

    def _later(self, method: Callable[..., None]) -> Callable[..., None]:
        def notify(*args: Any, **kwargs: Any) -> None:
            if self._has_begun:
                method(*args, **kwargs)

        return notify
