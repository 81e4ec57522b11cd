"""The sharded parameters for which any shard of a phase had a gradient. The others have none after
it, as with ``exact``."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from lockstep._world.comm.group import default_group

Used = dict[int, frozenset[int]]
"""The numbers of the used parameters, by backward call."""


class UsedParameters:
    """The parameters with gradients in each backward call of a phase, on all ranks. What the newest
    phase of one number had is not sent again while it stays the same.

    Args:
        device: of the messages.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[int, tuple[Used, Used]] = {}
        """The parameters used by this rank's shards, and by all shards, for each phase number."""
        self._phase = 0
        self._now: dict[int, set[int]] = {}
        """The parameters used by this rank's shards in the current phase, by backward call."""

    def begin_phase(self, phase: int) -> None:
        """Begins a phase. ``phase``: its number within the step."""
        self._phase, self._now = phase, {}

    def begin_call(self, call: int) -> None:
        """Begins a backward call."""
        self._now.setdefault(call, set())

    def add(self, call: int, number: int) -> None:
        """Notes that a parameter had a gradient in a backward call."""
        self._now[call].add(number)

    def _own(self) -> Used:
        return {call: frozenset(used) for call, used in self._now.items()}

    @property
    def is_new(self) -> bool:
        """Whether this rank's shards used other parameters than in the phase of this number
        before."""
        known = self._known.get(self._phase)
        return self._own() != (known[0] if known is not None else {})

    def exchange(self, num_calls: int, num_parameters: int) -> None:
        """Learns the parameters that all ranks used. Every rank must call it, if it ``is_new`` on
        any."""
        own = self._own()
        # One byte a parameter and call, and the maximum over ranks: 1 where any rank has a
        # gradient.
        flags = torch.zeros(num_calls, num_parameters, dtype=torch.uint8)
        for call, used in own.items():
            flags[call, list(used)] = 1
        flags = flags.to(self._device)
        if dist.get_world_size() > 1:
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=default_group())
        of_all = {call: frozenset(itertools.compress(itertools.count(), row)) for call, row in enumerate(flags.tolist())}
        self._known[self._phase] = own, of_all

    def of(self, call: int) -> frozenset[int]:
        """Returns the parameters that any rank used in a backward call."""
        known = self._known.get(self._phase)
        return frozenset() if known is None else known[1].get(call, frozenset())
