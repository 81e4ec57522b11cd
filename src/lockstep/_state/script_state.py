"""``ScriptState``: values of the script that the run saves and restores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from lockstep._base.errors import UsageError
from lockstep._state.checkpoint.tree import take_apart


class ScriptState:
    """A namespace of values of the script, saved in every checkpoint and restored on resume.
    Created by ``team.state``.

    Its names are fixed when it is created. Assign outside of ``batch.shards``, with the same value
    on every rank.

    Args:
        values: the initial values, by name.
        check_outside: raises UsageError, naming the call, inside ``batch.shards``.
    """

    def __init__(self, values: Mapping[str, Any], check_outside: Callable[[str], None]) -> None:
        for name in values:
            if name.startswith("_"):
                raise UsageError(f"team.state({name}=...): a name must not begin with an underscore", code="state-name")
        own = {"_check_outside": check_outside, "_values": {name: _savable(name, value) for name, value in values.items()}}
        # Not by assignment: __setattr__ accepts only the names of the script's values.
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})  # missing while copy.copy rebuilds the object
        if name not in values:
            raise AttributeError(self._unknown(name))
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(self._unknown(name))
        self._check_outside(f"state.{name} = ...")
        self._values[name] = _savable(name, value)

    def __repr__(self) -> str:
        return f"state({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def _unknown(self, name: str) -> str:
        known = self.__dict__.get("_values", {})
        return (
            f"the state has no {name!r}, only {', '.join(known)}. Add it where the state is created: team.state({name}=...)."
        )


class SavedValue:
    """One value of a ``ScriptState``, as an object of the run's state.

    Each value is registered alone, so that messages and comparisons name it.
    """

    def __init__(self, state: ScriptState, name: str) -> None:
        self._values: dict[str, Any] = state._values
        self._name = name

    def state_dict(self) -> Any:
        """Returns the value: a plain value, a tensor, or a tree of them."""
        return self._values[self._name]

    def load_state_dict(self, value: Any) -> None:
        """Restores the value."""
        self._values[self._name] = value


def _savable(name: str, value: Any) -> Any:
    """Returns the value to keep: a tensor without its graph. Raises ConfigError if a checkpoint
    cannot contain it."""
    if isinstance(value, Tensor):
        # The graph would keep the activations of a whole step alive.
        value = value.detach()
    # Now, at the line that assigns the value, not when a checkpoint is due hours later.
    take_apart(value, f"state.{name}")
    return value
