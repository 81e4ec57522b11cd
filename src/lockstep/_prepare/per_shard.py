"""State that each shard keeps from batch to batch, such as an RNN's hidden state.

The state belongs to the shard, not to the process that runs it. So its values move with the shard
when blocks change, and a checkpoint contains the values of all shards, from all ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep._base.errors import UsageError
from lockstep._data.batches import map_tensors
from lockstep._plan.blocks import Blocks
from lockstep._plan.shards import MicroBatch
from lockstep._world.comm.collectives import Collectives


class RunningShard(Protocol):
    """The source of the running shard."""

    num_shards: int
    """The number of shards, V."""

    @property
    def micro(self) -> MicroBatch | None:
        """The running micro-batch; None: outside of ``batch.shards``."""

    def check_outside(self, call: str) -> None:
        """Raises UsageError for ``call`` inside ``batch.shards``."""


class PerShard:
    """A value for each shard. ``value`` is the value of the running shard. Created by
    ``team.per_shard``.

    Args:
        name: the name in messages.
        start: the initial value, copied for each shard.
        phases: the source of the running shard.
        collectives: the collectives over all ranks.
        blocks: a function that returns the blocks in force.
        check: a function that raises ConfigError, with a name, for a value that checkpoints and
            other processes do not support.
        devices: the devices of this process.
    """

    def __init__(
        self,
        name: str,
        start: Any,
        phases: RunningShard,
        collectives: Collectives,
        blocks: Callable[[], Blocks],
        check: Callable[[Any, str], object],
        devices: Sequence[torch.device],
    ) -> None:
        self._name = name
        self._check = check
        check(start, f"the start of per_shard({name!r})")
        self._start = copy.deepcopy(start)
        self._phases = phases
        self._collectives = collectives
        self._blocks = blocks
        self._devices = devices
        self._begin()

    def _begin(self) -> None:
        self._values = [copy.deepcopy(self._start) for _ in range(self._phases.num_shards)]

    @property
    def value(self) -> Any:
        """The running shard's value. UsageError outside of ``batch.shards``."""
        return self._values[self._shard()]

    @value.setter
    def value(self, value: Any) -> None:
        shard = self._shard()
        # Now, at the line that assigns the value, not when the shard moves or a checkpoint is due.
        self._check(value, f"per_shard({self._name!r}).value")
        # A copy: the script may reuse the object for the next shard, and how many shards follow on
        # this process depends on W. Tensors keep their graphs, for truncated backpropagation.
        clones: dict[int, Any] = {}
        map_tensors(lambda tensor: clones.setdefault(id(tensor), tensor.clone()), value)
        self._values[shard] = copy.deepcopy(value, clones)

    def reset(self) -> None:
        """Gives every shard the initial value again, for example at the beginning of an epoch.
        Every rank must call it, outside of ``batch.shards``. In code that a resumed run repeats, it
        has no effect: the values are the saved ones."""
        self._phases.check_outside("per_shard.reset()")
        self._begin()

    def of(self, shard: int) -> Any:
        """Returns the value of a shard of this rank."""
        return self._values[shard]

    def swap(self, shard: int, value: Any) -> Any:
        """Replaces the value of a shard, and returns the old one."""
        before, self._values[shard] = self._values[shard], value
        return before

    def _shard(self) -> int:
        micro = self._phases.micro
        if micro is None:
            raise UsageError(
                f"per_shard({self._name!r}).value outside of batch.shards, where no shard runs. Use it in the loop over "
                "batch.shards, and team.register() for state that is the same on all ranks.",
                code="per-shard-outside",
            )
        return micro.shard

    def state_dict(self) -> dict[str, Any]:
        """Returns the values of all shards. Every rank must call it."""
        return {"values": self._of_all()}

    def share(self) -> None:
        """Gives all ranks the values of all shards, before shards move. Every rank must call it."""
        own = self._blocks().by_rank[self._collectives.rank]
        for shard, value in enumerate(self._of_all()):
            if shard not in own:
                self._values[shard] = value

    def _of_all(self) -> list[Any]:
        """Returns the values of all shards. A tensor is on the device of this process with the
        number that its device has on its own rank. Every rank must call it."""
        own = self._blocks().by_rank[self._collectives.rank]
        if self._collectives.size == 1:
            # without graphs, as what is sent: the state that is saved is copied
            return [map_tensors(Tensor.detach, self._values[shard]) for shard in own]
        parts = self._collectives.all_gather_object([_sent(self._values[shard], self._devices) for shard in own])
        return [_received(value, numbers, self._devices) for part in parts for value, numbers in part]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the values of all shards."""
        self._values = list(state["values"])


def _sent(value: Any, devices: Sequence[torch.device]) -> tuple[Any, list[int | None]]:
    """Returns a value on the CPU, and the numbers of the devices of its tensors; None: the CPU."""
    numbers: list[int | None] = []

    def note(tensor: Tensor) -> Tensor:
        numbers.append(devices.index(tensor.device) if tensor.device in devices and not tensor.is_cpu else None)
        return tensor.detach().cpu()

    return map_tensors(note, value), numbers


def _received(value: Any, numbers: list[int | None], devices: Sequence[torch.device]) -> Any:
    """Returns the argument of ``_sent``, on devices of this process."""
    places = iter(numbers)

    def put(tensor: Tensor) -> Tensor:
        number = next(places)
        return tensor if number is None else tensor.to(devices[number])

    return map_tensors(put, value)
