"""The leaves of one bucket, added up as the tree says."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from lockstep.plan.tree import Node, push
from lockstep.sync.buckets import ABSENT, Bucket, Flat


class BucketSum:
    """What a process has added up of one bucket so far, for one backward call of the body.

    Args:
        bucket: the bucket.
        ended: this process's shards that have run before in this phase: they had no gradients in it.
    """

    def __init__(self, bucket: Bucket, ended: Iterable[int]) -> None:
        self._bucket = bucket
        self._empty = list(ended)
        """This process's shards so far, as long as none has had a gradient: leaves that need no memory yet."""
        self._leaf: Flat | None = None
        """The shard at hand: with ``accumulate``, over its parts so far."""
        self._in_leaf: set[int] = set()
        """The slots of which it has a gradient."""
        self.stack: list[Node[Flat]] = []
        self.used: set[int] = set()
        """The slots of which one of this process's shards has a gradient."""

    def take(self, slot: int, gradient: Tensor, factor: float) -> None:
        """Weight a gradient, and put it into the leaf."""
        if self._leaf is None:
            self._leaf = self._bucket.take()
        view = self._leaf.views[slot]
        if gradient.dtype != view.dtype:  # 16-bit gradients are weighted in float32
            gradient = gradient.to(view.dtype)
        if slot in self._in_leaf:
            view.add_(gradient.mul_(factor))
        else:
            torch.mul(gradient, factor, out=view)
            self._in_leaf.add(slot)

    def end_shard(self, shard: int) -> None:
        """The leaf is whole: put it into the tree."""
        if self._leaf is None and not self.stack:
            self._empty.append(shard)
            return
        self.make_whole()
        self._push(shard, self._leaf, self._in_leaf)
        self._leaf, self._in_leaf = None, set()

    def make_whole(self) -> None:
        """Put leaves into the tree for the shards before the first that had a gradient."""
        for shard in self._empty:
            self._push(shard, None, set())
        self._empty = []

    def _push(self, shard: int, leaf: Flat | None, filled: set[int]) -> None:
        flat = leaf if leaf is not None else self._bucket.take()
        flat.counts.fill_(1.0)
        for slot in range(len(flat.views)) if len(filled) < len(flat.views) else ():
            if slot not in filled:
                flat.views[slot].fill_(ABSENT)
                flat.counts[slot] = 0.0
        push(self.stack, Node(shard, 1, flat), self._add)
        self.used |= filled

    def _add(self, left: Flat, right: Flat) -> Flat:
        left.data.add_(right.data)
        self._bucket.give_back(right)
        return left

    def clear(self) -> None:
        """Forget it all."""
        flats = [node.value for node in self.stack] + ([] if self._leaf is None else [self._leaf])
        for flat in flats:
            self._bucket.give_back(flat)
        self._leaf, self._in_leaf, self._empty, self.stack = None, set(), [], []
