"""Sums of the nodes of the tree that are side by side in memory, as the rows of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep._plan.rounds import Roots
from lockstep._plan.tree import Node, halvings, sum_siblings


class RowSum:
    """How rows add up, the same in every exchange of a phase: by halves as far as the tree allows,
    so 8 equal subtrees take 3 kernels instead of 7.

    ::

        4 ranks, 8 shards       (0+1)   (2+3)   (4+5)   (6+7)     rows 0 to 3
        rows[0::2] += [1::2]    (0+1+2+3)       (4+5+6+7)         rows 0 and 2
        rows[0::4] += [2::4]    (0 to 7)                          row 0

    Args:
        roots: the subtree of each row, by rank.
    """

    def __init__(self, roots: Roots) -> None:
        self._num_halvings, self._rest = halvings(roots)

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> list[Node[Tensor]]:
        """Returns the nodes that remain, as ``sum_siblings`` does. They are rows of the tensor, in
        which they are summed: its other values are lost.

        Args:
            rows: shape ``(number of subtrees, width)``.
        """
        for _ in range(self._num_halvings):
            rows[0::2].add_(rows[1::2])
            rows = rows[0::2]
        return sum_siblings([self._rest], rows.unbind(), Tensor.add_)
