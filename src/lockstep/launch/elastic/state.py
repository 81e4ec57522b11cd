"""torchelastic's state of a rendezvous, kept in the store as JSON.

torchelastic itself pickles it, and unpickling data that others have written runs code of their choice. Here it is pickled only
between torchelastic and this file, within one process; data from the store is parsed field by field, and refused if it is
anything else.

Times are by the clock of the store's keeper: see ``heartbeat``. The classes are private to PyTorch, and used in this file
alone; a test fails if they change.
"""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    Token,
    _NodeDesc,
    _RendezvousState,
)

_NODE = (("addr", str), ("pid", int), ("local_id", int))
_PLAIN = (("round", int), ("complete", bool), ("closed", bool))
_SETS = ("wait_list", "redundancy_list")


class StateInJson(RendezvousBackend):
    """torchelastic's storage for the state of a rendezvous.

    Args:
        inner: stores bytes.
        ahead_s: seconds by which this machine's clock is ahead of the keeper's.
        tell: called with the addresses of the participants whenever the state is read.
    """

    def __init__(self, inner: RendezvousBackend, ahead_s: float, tell: Callable[[list[str]], None]) -> None:
        self._inner = inner
        self._ahead = datetime.timedelta(seconds=ahead_s)
        self._tell = tell

    @property
    def name(self) -> str:
        """See torchelastic."""
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        """See torchelastic.

        Raises:
            RendezvousStateError: the stored value is no such state.
        """
        stored = self._inner.get_state()
        if stored is None:
            self._tell([])
            return None
        state = from_json(stored[0], self._ahead)
        self._tell(sorted(node.addr for node in state.participants))
        return pickle.dumps(state), stored[1]

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """See torchelastic, and ``get_state``."""
        stored = self._inner.set_state(to_json(pickle.loads(state), -self._ahead), token)
        return None if stored is None else (pickle.dumps(from_json(stored[0], self._ahead)), stored[1], stored[2])


def to_json(state: Any, shift: datetime.timedelta) -> bytes:
    """Serialize a state, with its times shifted."""

    def node(desc: Any) -> list[Any]:
        return [getattr(desc, name) for name, _ in _NODE]

    fields: dict[str, Any] = {name: getattr(state, name) for name, _ in _PLAIN}
    fields["deadline"] = None if state.deadline is None else (state.deadline + shift).isoformat()
    fields["participants"] = [[*node(desc), rank] for desc, rank in state.participants.items()]
    fields["last_heartbeats"] = [[*node(desc), (at + shift).isoformat()] for desc, at in state.last_heartbeats.items()]
    for name in _SETS:
        fields[name] = sorted(node(desc) for desc in getattr(state, name))
    return json.dumps(fields).encode()


def from_json(data: bytes, shift: datetime.timedelta) -> Any:
    """Parse a state, and shift its times.

    Raises:
        RendezvousStateError: it is none.
    """
    try:
        fields = json.loads(data)
        state = _RendezvousState()
        for name, kind in _PLAIN:
            setattr(state, name, _checked(fields[name], kind))
        deadline = fields["deadline"]
        state.deadline = None if deadline is None else datetime.datetime.fromisoformat(deadline) + shift
        state.participants = {_node(desc): _checked(rank, int) for *desc, rank in fields["participants"]}
        state.last_heartbeats = {
            _node(desc): datetime.datetime.fromisoformat(at) + shift for *desc, at in fields["last_heartbeats"]
        }
        for name in _SETS:
            setattr(state, name, {_node(desc) for desc in fields[name]})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            "what stands in the launchers' store is no state that a launcher of this lockstep has written: another program "
            f"writes there, or a launcher of another version. Nothing of it was executed ({type(error).__name__}: {error})"
        ) from error
    return state


def _node(values: list[Any]) -> _NodeDesc:
    return _NodeDesc(**{name: _checked(value, kind) for value, (name, kind) in zip(values, _NODE, strict=True)})


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
