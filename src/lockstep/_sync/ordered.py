"""The exchange by collectives in a fixed order, for GPUs: NCCL has no tags, and waits on the GPU.

All work is issued on a separate stream, which runs concurrently with the backward pass; the CPU
never waits. The sum is that of ``sync.exchange`` with one round of all ranks::

    all-to-all    row r of every node goes to rank r, which adds the rows in the tree
    all-gather    the sums go back, side by side

NCCL matches collectives by the order in which they are issued. That is the same on every rank,
because ``exact`` starts exchanges in one order."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._plan.rounds import Roots
from lockstep._plan.tree import sum_subtrees
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
        self._deferred: list[list[Tensor]] = []
        """The tensors that the stream may still read. (The allocator gives freed memory to the
        stream that it was allocated on.)"""

    def begin_phase(self, roots: Roots) -> None:
        """Sets the subtrees of all ranks for the following exchanges."""
        self._roots = roots

    def start(self, nodes: list[Tensor]) -> None:
        """Sums this rank's subtrees over all ranks into ``nodes[0]``, on the separate stream if
        there is one."""
        self._deferred.append(nodes)
        with self._on_stream():
            num_ranks, length = len(self._roots), nodes[0].numel()
            # Rows of one width, so that row r is a slice of the same elements in every node. The
            # last is padded with zeros, which are cut off again after the sum.
            width = -(-length // num_ranks)
            # Row r is sent to rank r: its slice of every subtree.
            outgoing = nodes[0].new_zeros(num_ranks, len(nodes), width)
            for number, node in enumerate(nodes):
                padded = torch.nn.functional.pad(node, (0, num_ranks * width - length))
                outgoing[:, number] = padded.view(num_ranks, width)
            sizes = [len(roots) * width for roots in self._roots]
            incoming = nodes[0].new_empty(sum(sizes))
            dist.all_to_all_single(incoming, outgoing.view(-1), sizes, [len(nodes) * width] * num_ranks)
            total = nodes[0].new_empty(num_ranks * width)
            all_gather_flat(total, sum_subtrees(self._roots, torch.split(incoming, width), torch.add))
            nodes[0].copy_(total[:length])

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
