"""torchelastic's state of a rendezvous, on its way between torchelastic and the launchers' store.

It is torchelastic's own pickle. Unpickling runs code of the writer's choice, and only launchers of
this run can write: the store is signed. On the way its times are shifted to the clock of the
store's keeper (see ``heartbeat``). They are private attributes, used in this file alone; a test
fails if they change.
"""

from __future__ import annotations

import datetime
import pickle
import random
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token
from typing_extensions import override

_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0


class StateByOneClock(RendezvousBackend):
    """torchelastic's storage for the state of a rendezvous.

    Args:
        inner: stores bytes, in a signed store.
        ahead_s: seconds by which this machine's clock is ahead of the keeper's.
        tell: called with the addresses of the participants whenever the state is read.
    """

    def __init__(self, inner: RendezvousBackend, ahead_s: float, tell: Callable[[list[str]], None]) -> None:
        self._inner = inner
        self._ahead = datetime.timedelta(seconds=ahead_s)
        self._tell = tell
        self._pause_s = _LEAST_PAUSE_S

    @property
    @override
    def name(self) -> str:
        return self._inner.name

    @override
    def get_state(self) -> tuple[bytes, Token] | None:
        stored = self._inner.get_state()
        if stored is None:
            self._tell([])
            return None
        state = _shifted(stored[0], self._ahead)
        self._tell(sorted(node.addr for node in state.participants))
        return pickle.dumps(state), stored[1]

    @override
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        stored = self._inner.set_state(pickle.dumps(_shifted(state, -self._ahead)), token)
        if stored is None:
            return None
        if stored[2]:
            self._pause_s = _LEAST_PAUSE_S
        else:
            # torchelastic tries again at once. Of dozens of nodes that join so at once, few ever
            # succeed: by the time that one has changed what it got, another has written.
            time.sleep(random.random() * self._pause_s)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            newest = self._inner.get_state()
            if newest is not None:
                stored = (*newest, False)
        return pickle.dumps(_shifted(stored[0], self._ahead)), stored[1], stored[2]


def _shifted(data: bytes, by: datetime.timedelta) -> Any:
    state = pickle.loads(data)
    state.deadline = None if state.deadline is None else state.deadline + by
    state.last_heartbeats = {node: at + by for node, at in state.last_heartbeats.items()}
    return state
