"""A sum over all ranks by two collectives, straight from and into the memory of the nodes.

::

    all-to-all    row r of every node goes to rank r, which adds the rows in the tree
    all-gather    the sums go back, side by side

With one node a rank and W = 8 that is 5 launches: the two, and 3 kernels that add."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._plan.rounds import Roots
from lockstep._plan.tree import fold
from lockstep._sync.row_sum import RowSum
from lockstep._world.comm.collectives import all_gather_flat


class CollectiveSum:
    """Sums in one round of all ranks.

    Args:
        roots: the subtrees of each rank.
    """

    def __init__(self, roots: Roots) -> None:
        self._nodes_of_ranks = [len(own) for own in roots]
        self._row_sum = RowSum(roots)

    def __call__(self, nodes: list[Tensor]) -> None:
        """Sums this rank's nodes over all ranks into the first. Every rank must call it.

        Args:
            nodes: of equal length, a multiple of the number of ranks.
        """
        num_ranks = len(self._nodes_of_ranks)
        rows = [node.view(num_ranks, -1) for node in nodes]
        # The rows that go to one rank, one after the other.
        outgoing = rows[0] if len(rows) == 1 else torch.stack(rows, dim=1)
        width = rows[0].shape[1]
        sizes = [number * width for number in self._nodes_of_ranks]
        incoming = nodes[0].new_empty(sum(sizes))
        dist.all_to_all_single(incoming, outgoing.view(-1), sizes, [len(nodes) * width] * num_ranks)
        total = fold(self._row_sum(incoming.view(-1, width)), Tensor.add_)
        # What was sent is free by now, on this stream.
        all_gather_flat(nodes[0], total)
