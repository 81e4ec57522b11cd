"""A sum over all ranks in the rounds of ``plan.rounds``, by messages that need no tags.

NCCL sends messages in batches, each of which is one launch. It has no tags: messages between two
ranks match in the order in which they are issued, which is the same on both sides. A batch waits
for the one before it on the stream, and not on the host.

Two machines of two GPUs, one node a rank, and a tensor in four slices::

    round 1    0 1    2 3     within each machine: ranks 0 and 2 sum slices 0 and 1 of their pair,
                              ranks 1 and 3 slices 2 and 3
    round 2    0 2    1 3     between machines: each rank sums one slice over both pairs
    way back   0 2    1 3     the sums, straight into the tensor: every rank has two slices,
               0 1    2 3     then all four

So a machine lets out what one of its GPUs would: n/2 elements on each way, from all of its GPUs
together. All-to-all and all-gather of all ranks would let out n/2 + n/2 and 3n/4."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._plan.rounds import Roots, plan_rounds
from lockstep._plan.tree import Node, fold
from lockstep._sync.row_sum import RowSum


class MessageSum:
    """Sums in rounds; in none if there is one rank.

    Args:
        rank: this process's rank in the default group.
        roots: the subtrees of each rank.
        of_bases: the result of ``plan.rounds.bases``.
    """

    def __init__(self, rank: int, roots: Roots, of_bases: Sequence[int]) -> None:
        self._rank, self._own_roots = rank, roots[rank]
        self._rounds = [(round_, RowSum(round_.roots)) for round_ in plan_rounds(rank, roots, of_bases)]

    def __call__(self, nodes: list[Tensor]) -> None:
        """Sums this rank's nodes over all ranks into the first. Every rank must call it.

        Args:
            nodes: of equal length, a multiple of the number of ranks.
        """
        stack = [Node(*root, node) for root, node in zip(self._own_roots, nodes, strict=True)]
        result, way_back = nodes[0], list[tuple[Sequence[int], Sequence[Tensor]]]()
        for round_, row_sum in self._rounds:
            members, mine = round_.members, round_.members.index(self._rank)
            slices = [_cut(node.value, len(members)) for node in stack]
            incoming = result.new_empty(sum(map(len, round_.roots)), len(slices[0][0]))
            of_members = torch.split(incoming, [len(own) for own in round_.roots])
            torch.stack([of_node[mine] for of_node in slices], out=of_members[mine])
            peers = [*range(mine + 1, len(members)), *range(mine)]
            _send_and_receive(
                [(of_node[peer], members[peer]) for peer in peers for of_node in slices],
                [(row, members[peer]) for peer in peers for row in of_members[peer]],
            )
            stack = row_sum(incoming)
            way_back.append((members, _cut(result, len(members))))
            result = way_back[-1][1][mine]
        total = fold(stack, Tensor.add_)
        if self._rounds:
            result.copy_(total)
        # What was sent is free by now, on this stream: the sums are received into it.
        for ranks, parts in reversed(way_back):
            own = parts[ranks.index(self._rank)]
            others = [(part, peer) for part, peer in zip(parts, ranks, strict=True) if peer != self._rank]
            _send_and_receive([(own, peer) for _, peer in others], others)


def _cut(tensor: Tensor, number: int) -> Sequence[Tensor]:
    """Cuts a flat tensor into equal slices."""
    return tensor.view(number, -1).unbind()


def _send_and_receive(sends: Iterable[tuple[Tensor, int]], receives: Iterable[tuple[Tensor, int]]) -> None:
    """Sends tensors to ranks, and receives tensors from ranks, in one batch."""
    messages = [dist.P2POp(dist.isend, tensor, rank) for tensor, rank in sends]
    messages += [dist.P2POp(dist.irecv, tensor, rank) for tensor, rank in receives]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
