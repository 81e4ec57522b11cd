"""Summing one rank's slices of gradients in the order of the tree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lockstep._plan.tree import Node, push, sum_subtrees
from lockstep._sync.slices import Slices


class SliceSum:
    """The sum over all shards of the slices that this rank owns, for one backward call of the
    phase.

    In micro-step i every rank sends the leaf of the i-th of its shards. These belong to different
    subtrees, so each rank has a stack here.

    Args:
        slices: whose they are.
        blocks: the shards of ranks 0, 1, ..., equally many.
    """

    def __init__(self, slices: Slices, blocks: Sequence[range]) -> None:
        self._slices = slices
        self._blocks = blocks
        self._stacks: list[list[Node[Tensor]]] = [[] for _ in blocks]
        self._leaf: Tensor | None = None
        """What came for the newest shards: with ``accumulate``, the sum over their parts so far."""
        self._index = 0
        """Theirs, within the blocks."""
        self._total: Tensor | None = None

    def add(self, index: int, leaf: Tensor) -> None:
        """Add what the ranks have sent for the shards with this index in their blocks: row r came
        from rank r. It is kept."""
        if self._leaf is not None and index == self._index:
            self._leaf.add_(leaf)
            return
        self._push_until(index)
        self._leaf = leaf

    def _push_until(self, index: int) -> None:
        """Add the leaves before this index to the tree."""
        while self._index < index:
            leaf = self._leaf if self._leaf is not None else self._slices.complete(self._slices.new_leaf())
            for block, stack, row in zip(self._blocks, self._stacks, leaf, strict=True):
                push(stack, Node(block[self._index], 1, row), Tensor.add_)
            self._leaf = None
            self._index += 1

    def total(self) -> Tensor:
        """The sum, once the last leaf is there: shape ``(width,)``."""
        if self._total is None:
            self._push_until(len(self._blocks[0]))
            roots = [[(node.start, node.size) for node in stack] for stack in self._stacks]
            values = [node.value for stack in self._stacks for node in stack]
            total = sum_subtrees(roots, values, Tensor.add_)
            # a row: the others would be kept with it
            self._total = total.clone() if len(self._blocks) > 1 else total
            self._stacks = []
        return self._total
