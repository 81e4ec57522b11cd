"""Warning of what belongs to the state of prepared objects and is not in the checkpoint that was just taken."""

from __future__ import annotations

from typing import Any

from lockstep.base.stopping import say
from lockstep.prepare.state_adapters import StateAdapter
from lockstep.state.recovery.run_state import RunState


class LeftOut:
    """Says it, once of each attribute."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._named = set[tuple[str, str]]()

    def say(self) -> None:
        """Name what is new. Local."""
        for adapter in self._state.objects:
            kind = type(adapter.target).__name__
            refused = self._news(adapter, self._state.left_out.get(adapter.name, {}))
            if refused:
                first = next(iter(refused))
                self._warn(
                    f"{kind} changes {_listed(refused)} in its steps, which a checkpoint cannot hold",
                    f"Give {kind} a state_dict() and load_state_dict() with tensors and plain values for them, or register "
                    f"what has these methods: team.register({first!r}, optimizer.{first})",
                )
            untold = self._news(adapter, adapter.untold())
            if untold:
                self._warn(
                    f"{kind} changes {_listed(untold)} in its steps, which its state_dict() leaves out",
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
