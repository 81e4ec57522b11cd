"""The exchange by collectives in a fixed order, for GPUs: NCCL has no tags, and waits on the GPU.

All work is issued on a separate stream, which runs concurrently with the backward pass; the CPU
never waits. The sum is that of ``sync.exchange`` with one round of all ranks::

    all-to-all    row r of every node goes to rank r, which adds the rows in the tree
    all-gather    the sums go back, side by side

A bucket can be cut into as many rows as there are ranks (``sync.buckets``). So it is sent as it is,
and the sums are received into it: with W = 8 and one node a rank, an exchange is 5 launches.

NCCL matches collectives by the order in which they are issued. That is the same on every rank,
because ``exact`` starts exchanges in one order."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._plan.rounds import Roots
from lockstep._plan.tree import fold, sum_subtrees
from lockstep._sync.row_sum import RowSum
from lockstep._world.comm.collectives import all_gather_flat
from lockstep._world.devices import new_stream


class OrderedExchange:
    """Like ``Exchange``, for tensors on one device. Every rank must make the same calls in the same
    order.

    Args:
        device: the device of the tensors. On the CPU every call blocks.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = new_stream(device)
        self._roots: Roots = [[]]
        self._row_sum = RowSum(self._roots)
        self._deferred: list[list[Tensor]] = []
        """The tensors that the stream may still read. (The allocator gives freed memory to the
        stream that it was allocated on.)"""

    def begin_phase(self, roots: Roots) -> None:
        """Sets the subtrees of all ranks for the following exchanges."""
        if roots is not self._roots:
            self._roots, self._row_sum = roots, RowSum(roots)

    def start(self, nodes: list[Tensor]) -> None:
        """Sums this rank's subtrees over all ranks into ``nodes[0]``, on the separate stream if
        there is one. The other nodes' values are lost."""
        self._deferred.append(nodes)
        with self._on_stream():
            length = nodes[0].numel()
            missing = -length % len(self._roots)
            if not missing:
                self._sum(nodes)
                return
            # Buffers, whose length is what it is.
            padded = [torch.nn.functional.pad(node, (0, missing)) for node in nodes]
            self._sum(padded)
            nodes[0].copy_(padded[0][:length])

    def _sum(self, nodes: list[Tensor]) -> None:
        """Sums nodes that can be cut into a row for each rank into the first."""
        num_ranks = len(self._roots)
        if num_ranks == 1:
            sum_subtrees(self._roots, nodes, Tensor.add_)
            return
        # Row r of every node goes to rank r, its rows one after the other.
        rows = [node.view(num_ranks, -1) for node in nodes]
        outgoing = rows[0] if len(rows) == 1 else torch.stack(rows, dim=1)
        width = rows[0].shape[1]
        sizes = [len(own) * width for own in self._roots]
        incoming = nodes[0].new_empty(sum(sizes))
        dist.all_to_all_single(incoming, outgoing.view(-1), sizes, [len(nodes) * width] * num_ranks)
        total = fold(self._row_sum(incoming.view(-1, width)), Tensor.add_)
        # What was sent is free by now, on this stream.
        all_gather_flat(nodes[0], total)

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
