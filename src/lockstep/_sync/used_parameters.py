"""For which sharded parameters any shard of a phase had a gradient: the others have none after it,
as with ``exact``."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from lockstep._world.comm.group import default_group

Used = dict[int, frozenset[int]]
"""By backward call, the numbers of parameters."""


class UsedParameters:
    """Them. What the newest phase of one number has had is not sent again while it stays the same.

    Args:
        device: of the messages.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[int, tuple[Used, Used]] = {}
        """By number of the phase: those of this rank's shards, and of all."""
        self._phase = 0
        self._now: dict[int, set[int]] = {}
        """Those of this rank's shards in the phase."""

    def begin_phase(self, phase: int) -> None:
        """Begin a phase. ``phase``: its number within the step."""
        self._phase, self._now = phase, {}

    def begin_call(self, call: int) -> None:
        """A backward call of this number begins."""
        self._now.setdefault(call, set())

    def add(self, call: int, number: int) -> None:
        """The parameter of this number had a gradient in a backward call."""
        self._now[call].add(number)

    def _own(self) -> Used:
        return {call: frozenset(used) for call, used in self._now.items()}

    @property
    def is_new(self) -> bool:
        """Whether this rank's are others than in the phase of this number before."""
        known = self._known.get(self._phase)
        return self._own() != (known[0] if known is not None else {})

    def exchange(self, num_calls: int, num_parameters: int) -> None:
        """Find out those of all ranks. Every rank must call it, if it ``is_new`` on any."""
        own = self._own()
        flags = torch.zeros(num_calls, num_parameters, dtype=torch.uint8)
        for call, used in own.items():
            flags[call, list(used)] = 1
        flags = flags.to(self._device)
        if dist.get_world_size() > 1:
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=default_group())
        of_all = {call: frozenset(itertools.compress(itertools.count(), row)) for call, row in enumerate(flags.tolist())}
        self._known[self._phase] = own, of_all

    def of(self, call: int) -> frozenset[int]:
        """Those of all ranks in a backward call."""
        known = self._known.get(self._phase)
        return frozenset() if known is None else known[1].get(call, frozenset())
