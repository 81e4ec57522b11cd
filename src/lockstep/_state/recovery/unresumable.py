"""Warns of state that is missing from a new checkpoint, and of changes for which a launch that
resumes from it would be refused."""

from __future__ import annotations

from typing import Any

from lockstep._base.reports import warn
from lockstep._prepare.state_adapters import StateAdapter
from lockstep._state.recovery.run_state import RunState

_MOST_NAMED = 3


class Unresumable:
    """The warnings about new checkpoints, once for each cause."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._named = set[tuple[str, str]]()
        self._changed = set[str]()

    def warn(self, step: int) -> None:
        """Warns of new causes in a checkpoint of this step. Local."""
        for adapter in (*self._state.objects, *self._state.registered.values()):
            self._report_changes(adapter, step)
            self._report_unsavable(adapter)

    def _report_changes(self, adapter: StateAdapter, step: int) -> None:
        changes = adapter.changes() if adapter.name not in self._changed else []
        if not changes:
            return
        self._changed.add(adapter.name)
        more = len(changes) - _MOST_NAMED
        listed = "; ".join(changes[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        warn(
            f"{adapter.name} ({type(adapter.target).__name__}) has changed since it was prepared: {listed}. A launch that "
            f"resumes from step {step} or later is refused, or continues with another {adapter.kind}. {adapter.remedy}.",
            code="prepared-object-changed",
        )

    def _report_unsavable(self, adapter: StateAdapter) -> None:
        kind = type(adapter.target).__name__
        refused = self._news(adapter, self._state.unsavable.get(adapter, {}))
        if refused:
            first = next(iter(refused))
            self._warn(
                f"{kind} changes {_listed(refused)} in its steps, which checkpoints do not support",
                f"Give {kind} a state_dict() and load_state_dict() with tensors and plain values for them, or register an "
                f"object that has these methods: team.register({first!r}, optimizer.{first})",
                "attribute-not-savable",
            )
        omitted = self._news(adapter, adapter.omitted())
        if omitted:
            self._warn(
                f"{kind} changes {_listed(omitted)} in its steps, which its state_dict() does not contain",
                f"Add them to the state_dict() and load_state_dict() of {kind}",
                "attribute-not-in-state-dict",
            )

    def _news(self, adapter: StateAdapter, attributes: dict[str, Any]) -> dict[str, Any]:
        saved = {id(each.target) for each in (*self._state.objects, *self._state.registered.values())}
        news = {
            name: value
            for name, value in attributes.items()
            if (adapter.name, name) not in self._named and not all(id(item) in saved for item in _items_of(value))
        }
        self._named |= {(adapter.name, name) for name in news}
        return news

    def _warn(self, what: str, remedy: str, code: str) -> None:
        warn(f"{what}. A resumed run would continue without them, with different results. {remedy}.", code=code)


def _items_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _listed(attributes: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` (a {type(value).__name__})" for name, value in attributes.items())
