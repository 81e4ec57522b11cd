"""State that goes from batch to batch, for each shard its own: an RNN's hidden state, say."""

from __future__ import annotations

import copy
from typing import Any, Protocol

from lockstep.comm.collectives import Collectives
from lockstep.errors import UsageError
from lockstep.plan.shards import MicroStep, block


class Current(Protocol):
    """What runs at the moment."""

    num_shards: int
    """V."""
    micro: MicroStep | None
    """None: outside of ``batch.shards``."""


class PerShard:
    """A value for each shard: ``value`` is that of the shard that runs. Made by ``team.per_shard``.

    Args:
        name: for messages.
        start: what every shard begins with; each gets a copy.
        phases: says which shard runs.
        collectives: of all ranks.
    """

    def __init__(self, name: str, start: Any, phases: Current, collectives: Collectives) -> None:
        self._name = name
        self._values = [copy.deepcopy(start) for _ in range(phases.num_shards)]
        self._phases = phases
        self._collectives = collectives

    @property
    def value(self) -> Any:
        """Of the shard that runs."""
        return self._values[self._shard()]

    @value.setter
    def value(self, value: Any) -> None:
        self._values[self._shard()] = value

    def _shard(self) -> int:
        micro = self._phases.micro
        if micro is None:
            raise UsageError(
                f"per_shard({self._name!r}).value outside of batch.shards: each shard has its own, so there is none here. Use "
                "it in the loop over batch.shards; what is one for all ranks goes to team.register()."
            )
        return micro.shard

    def state_dict(self) -> dict[str, Any]:
        """The values of all shards. Every rank must call it."""
        size, number = self._collectives.size, len(self._values)
        own = block(self._collectives.rank, size, number)
        parts = self._collectives.all_gather_object(self._values[own.start : own.stop])
        return {"values": [value for part in parts for value in part]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values of all shards."""
        self._values = list(state["values"])
