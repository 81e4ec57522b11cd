"""Warning of what a launch that resumes from the checkpoint that was just taken would go on
without, or be refused for."""

from __future__ import annotations

from typing import Any

from lockstep._base.stopping import say
from lockstep._prepare.state_adapters import StateAdapter
from lockstep._state.recovery.run_state import RunState

_MOST_NAMED = 3


class Unresumable:
    """Warns, once of each thing."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._named = set[tuple[str, str]]()
        self._changed = set[str]()

    def warn(self, step: int) -> None:
        """Say what is new, as of a checkpoint of this step. Local."""
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
        say(
            f"WARNING: {adapter.name} ({type(adapter.target).__name__}) is not as it was prepared: {listed}. A launch that "
            f"resumes this run, from step {step} on, prepares it as it was then, and is refused, or goes on with another "
            f"{adapter.kind}. {adapter.remedy}."
        )

    def _report_unsavable(self, adapter: StateAdapter) -> None:
        kind = type(adapter.target).__name__
        refused = self._news(adapter, self._state.unsavable.get(adapter, {}))
        if refused:
            first = next(iter(refused))
            self._warn(
                f"{kind} changes {_listed(refused)} in its steps, which a checkpoint cannot hold",
                f"Give {kind} a state_dict() and load_state_dict() with tensors and plain values for them, or register what "
                f"has these methods: team.register({first!r}, optimizer.{first})",
            )
        omitted = self._news(adapter, adapter.omitted())
        if omitted:
            self._warn(
                f"{kind} changes {_listed(omitted)} in its steps, which its state_dict() leaves out",
                f"Add them to the state_dict() and load_state_dict() of {kind}",
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

    def _warn(self, what: str, remedy: str) -> None:
        say(
            f"WARNING: {what}: a run that is interrupted and resumed would go on without them, and give a different answer. "
            f"{remedy}."
        )


def _items_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _listed(attributes: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` (a {type(value).__name__})" for name, value in attributes.items())
