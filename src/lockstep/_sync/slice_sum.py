"""Summing one rank's slices of gradients in the order of the tree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lockstep._plan.tree import Node, push, sum_subtrees
from lockstep._sync.slices import Slices


class SliceSum:
    """The sum over all shards of the slices that this rank owns, for one backward call of the
    phase.

    In micro-batch i every rank sends the leaf of the i-th of its shards. These belong to different
    subtrees, so each rank has a stack here::

        2 ranks, 6 shards     micro-batch 0    1    2
        from rank 0           shard      0    1    2     stack 0: (0+1) 2
        from rank 1           shard      3    4    5     stack 1: 3 (4+5)

    After the last micro-batch the stacks are the roots that ``exact`` would exchange, and are added
    in the same order, so the sum is bit-identical.

    Args:
        slices: whose they are.
        blocks: the shards of ranks 0, 1, ..., equally many.
    """

    def __init__(self, slices: Slices, blocks: Sequence[range]) -> None:
        self._slices = slices
        self._blocks = blocks
        self._stacks: list[list[Node[Tensor]]] = [[] for _ in blocks]
        self._leaf: Tensor | None = None
        """The leaves of the newest shards: with ``accumulate``, the sums over their parts so
        far."""
        self._index = 0
        """The index of the newest shards within their blocks."""
        self._total: Tensor | None = None

    def add(self, index: int, leaf: Tensor) -> None:
        """Adds what the ranks have sent for the shards with this index in their blocks: row r came
        from rank r. Keeps the tensor."""
        if self._leaf is not None and index == self._index:
            self._leaf.add_(leaf)
            return
        self._push_until(index)
        self._leaf = leaf

    def _push_until(self, index: int) -> None:
        """Adds the leaves before this index to the tree."""
        # An index that was passed over had no gradients: its leaf is ABSENT, since it must have a
        # place in the tree.
        while self._index < index:
            leaf = self._leaf if self._leaf is not None else self._slices.complete(self._slices.new_leaf())
            for block, stack, row in zip(self._blocks, self._stacks, leaf, strict=True):
                push(stack, Node(block[self._index], 1, row), Tensor.add_)
            self._leaf = None
            self._index += 1

    def total(self) -> Tensor:
        """Returns the sum, once the last leaf is there: shape ``(width,)``."""
        if self._total is None:
            self._push_until(len(self._blocks[0]))
            roots = [[(node.start, node.size) for node in stack] for stack in self._stacks]
            values = [node.value for stack in self._stacks for node in stack]
            total = sum_subtrees(roots, values, Tensor.add_)
            # a row: the others would be kept with it
            self._total = total.clone() if len(self._blocks) > 1 else total
            self._stacks = []
        return self._total
