"""The exchange in a fixed order, for GPUs: NCCL has no tags, and waits on the GPU.

All work is issued on a separate stream, which runs concurrently with the backward pass; the CPU
never waits. The sum is that of ``sync.exchange``: by two collectives of all ranks, or, where
machines have several ranks each, by messages within the machines first and then between them, so
that less leaves a machine.

A bucket can be cut into as many slices as there are ranks (``sync.buckets``). So it is sent
without a copy, and the sums are received into it.

NCCL matches what ranks issue by its order. That is the same on every rank, because ``exact`` starts
exchanges in one order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor

from lockstep._plan.rounds import Roots, bases
from lockstep._sync.collective_sum import CollectiveSum
from lockstep._sync.message_sum import MessageSum
from lockstep._world.devices import new_stream


class OrderedExchange:
    """Like ``Exchange``, for tensors on one device. Every rank must make the same calls in the same
    order.

    Args:
        rank: this process's rank in the default group.
        device: the device of the tensors. On the CPU every call blocks.
        ranks_per_machine: number of consecutive ranks on each machine; 1 if machines differ in it.
    """

    def __init__(self, rank: int, device: torch.device, *, ranks_per_machine: int = 1) -> None:
        self._rank = rank
        self._ranks_per_machine = ranks_per_machine
        self._stream = new_stream(device)
        self._roots: Roots = []
        self._sum: Callable[[list[Tensor]], None]
        """Sums nodes over all ranks into the first."""
        self._deferred: list[list[Tensor]] = []
        """The tensors that the stream may still read. (The allocator gives freed memory to the
        stream that it was allocated on.)"""

    def begin_phase(self, roots: Roots) -> None:
        """Sets the subtrees of all ranks for the following exchanges."""
        if roots is self._roots:
            return
        self._roots = roots
        # Within a machine a round of all is as good, and collectives are fewer calls.
        is_one_round = self._ranks_per_machine in (1, len(roots)) and len(roots) > 1
        of_bases = bases(len(roots), self._ranks_per_machine)
        self._sum = CollectiveSum(roots) if is_one_round else MessageSum(self._rank, roots, of_bases)

    def start(self, nodes: list[Tensor]) -> None:
        """Sums this rank's subtrees over all ranks into ``nodes[0]``, on the separate stream if
        there is one. The other nodes' values are lost."""
        length = nodes[0].numel()
        if not length:
            return
        self._deferred.append(nodes)
        with self._on_stream():
            missing = -length % len(self._roots)
            if not missing:
                self._sum(nodes)
                return
            # Buffers, whose length is what it is.
            padded = [torch.nn.functional.pad(node, (0, missing)) for node in nodes]
            self._sum(padded)
            nodes[0].copy_(padded[0][:length])

    def finish(self) -> None:
        """Makes the current stream wait for all started exchanges."""
        if self._stream is not None:
            torch.accelerator.current_stream(self._stream.device).wait_stream(self._stream)
        self._deferred = []

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        if self._stream is None:
            return contextlib.nullcontext()
        self._stream.wait_stream(torch.accelerator.current_stream(self._stream.device))
        return self._stream
