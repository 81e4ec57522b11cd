"""Summing the leaves of one bucket in the order of the tree.

A leaf is what one shard adds to the bucket: gradients times the shard's weight, with ABSENT where
it has none, and behind them a 1 or 0 for each parameter. Bits are the same for every number of
processes, because each element of a leaf is a function of its shard alone: the gradient is created
by autograd in an empty ``.grad``, widened, and multiplied once; then it is only ever added, in the
brackets of the tree. With ``accumulate``, a leaf is the sum over the shard's parts, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor

from lockstep._plan.tree import Node, push
from lockstep._sync.buckets import Bucket, Flat
from lockstep._sync.copies import copy_all
from lockstep._sync.gradients import ABSENT, is_left_out
from lockstep._world.arrivals import Arrivals
from lockstep._world.devices import in_current_stream


class BucketSum:
    """A process's partial sum of one bucket, for one backward call of the phase.

    Args:
        bucket: the bucket.
        ended: this process's shards that ran earlier in this phase, and had no gradients in the
            bucket.
    """

    def __init__(self, bucket: Bucket, ended: Iterable[int]) -> None:
        self._bucket = bucket
        self._empty = list(ended)
        """This process's shards so far, until one has a gradient: their leaves need no memory
        yet."""
        self._leaf: Flat | None = None
        """The leaf of the current shard: with ``accumulate``, the sum over its parts so far."""
        self._filled_slots: set[int] = set()
        """The slots of ``_leaf`` that have a gradient."""
        self._arrived: dict[int, Tensor] = {}
        """The gradients on a device that are yet to be multiplied by ``_factor`` and added to the
        leaf, by slot."""
        self._arrivals = Arrivals()
        """The same, with the streams that compute them."""
        self.on_its_stream: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        """The stream in which the script runs the backward pass. Whatever uses the bucket's memory
        is in it, so that a hook, which is called in the stream of one gradient, enters it."""
        self._number: float | None = None
        """The number that ``_factor`` was made of."""
        self._factor: float | Tensor = 1.0
        """The factor of the running backward pass; of a bucket on the CPU, a scalar tensor."""
        self._is_left_out = False
        """Whether the running backward pass has weight 0."""
        self.missing: set[int] = set()
        """The slots whose gradients the running backward pass has yet to produce."""
        self.is_sent = False
        """Whether the sum is being exchanged, so that nothing more can be added."""
        self.stack: list[Node[Flat]] = []
        self.used: set[int] = set()
        """The slots for which any of this process's shards has a gradient."""

    def begin_backward(self, factor: float | Tensor) -> None:
        """Begins a backward pass, whose gradients are multiplied by ``factor``. A factor that only
        the device knows is a scalar tensor there; with it, gradients of weight 0 are ABSENT, but
        count as gradients."""
        self.missing = set(range(len(self._bucket.parameters)))
        self._is_left_out = is_left_out(factor)
        if self._bucket.device.type == "cpu":
            # PyTorch would make this tensor of a number anew for each gradient, which takes longer
            # than to multiply a short one.
            if self._number != factor:  # the shards of a phase nearly always have the same
                self._number = float(factor)
                self._factor = torch.full((), float(factor), dtype=self._bucket.dtype, device="cpu")
        else:
            self._factor = factor
            self.on_its_stream = in_current_stream(self._bucket.device)

    def take(self, slot: int, gradient: Tensor) -> None:
        """Multiplies a gradient by the factor and adds it to the leaf: on a device at the next
        ``flush``."""
        self.missing.discard(slot)
        # It may be NaN, from a mean over nothing, and 0 x NaN is NaN.
        if self._is_left_out:
            return
        if not gradient.is_cpu:
            # The gradient arrives again, of a weight in several checkpointed blocks: what arrived
            # first is added before, so that additions are in the order of arrival, as on the CPU.
            if slot in self._arrived:
                with self.on_its_stream:
                    self.flush()
            self._arrived[slot] = gradient
            self._arrivals.note(gradient)
            return
        if self._leaf is None:
            self._leaf = self._bucket.take()
        view = self._leaf.views[slot]
        if gradient.dtype != view.dtype:  # 16-bit gradients are weighted in float32
            gradient = gradient.to(view.dtype)
        if slot in self._filled_slots:
            # The product is a new tensor: autograd may have given other parameters the same one.
            view.add_(gradient * self._factor)
        else:
            # Straight into the bucket: the gradient is read once, while it is in the cache, and
            # there is no second copy of it.
            torch.mul(gradient, self._factor, out=view)
            self._filled_slots.add(slot)

    def end_backward(self) -> None:
        """Ends a backward pass. Parameters that the loss does not reach get no hook call. Now it is
        known that no gradient comes any more, so the bucket counts as complete, with ABSENT in
        these slots."""
        self.missing = set()
        if self._arrived:
            self.flush()

    @property
    def has_arrived(self) -> bool:
        """Whether something has arrived on a device, to be added to the leaf by ``flush``."""
        return bool(self._arrived)

    def flush(self) -> None:
        """Adds what has arrived on a device to the leaf, by a kernel for many parameters rather
        than one for each."""
        gradients, self._arrived = self._arrived, {}
        self._arrivals.wait()
        factor, scratch = self._factor, None
        if isinstance(factor, Tensor):
            scratch, factor = self._weighted(gradients, factor), 1.0
            gradients = {slot: scratch.views[slot] for slot in gradients}
        arrived = list(gradients.items())
        leaf = self._leaf = self._leaf or self._bucket.take()
        new = [(leaf.views[slot], gradient) for slot, gradient in arrived if slot not in self._filled_slots]
        more = [(leaf.views[slot], gradient) for slot, gradient in arrived if slot in self._filled_slots]
        if new:
            copy_all(new)
            torch._foreach_mul_([view for view, _ in new], factor)
        if more:
            products = torch._foreach_mul([gradient.to(view.dtype) for view, gradient in more], factor)
            torch._foreach_add_([view for view, _ in more], products)
        self._filled_slots.update(gradients)
        if scratch is not None:
            self._bucket.give_back(scratch)

    def _weighted(self, gradients: dict[int, Tensor], factor: Tensor) -> Flat:
        """Gradients by slot, times a factor that the device knows."""
        flat = self._bucket.take()
        copy_all((flat.views[slot], gradient) for slot, gradient in gradients.items())
        factor = factor.to(flat.data.device, flat.data.dtype)
        flat.data.mul_(factor).masked_fill_(factor == 0, ABSENT)  # and not 0 x NaN
        return flat

    def end_shard(self, shard: int) -> None:
        """Adds the complete leaf to the tree."""
        if self._arrived:
            self.flush()
        # A bucket that no shard uses has no memory: its leaves are made only if it is sent.
        if self._leaf is None and not self.stack:
            self._empty.append(shard)
            return
        self.make_whole()
        self._push(shard, self._leaf, self._filled_slots)
        self._leaf, self._filled_slots = None, set()

    def make_whole(self) -> None:
        """Adds leaves for the shards before the first that had a gradient."""
        for shard in self._empty:
            self._push(shard, None, set())
        self._empty = []

    def _push(self, shard: int, leaf: Flat | None, filled: set[int]) -> None:
        flat = leaf if leaf is not None else self._bucket.take()
        # Numbers of shards, summed with the gradients: exact in float32 up to 2**24 shards.
        flat.counts.fill_(1.0)
        for slot in range(len(flat.views)) if len(filled) < len(flat.views) else ():
            if slot not in filled:
                flat.views[slot].fill_(ABSENT)
                flat.counts[slot] = 0.0
        push(self.stack, Node(shard, 1, flat), self._add)
        self.used |= filled

    def _add(self, left: Flat, right: Flat) -> Flat:
        # One addition for all gradients of the bucket, its counts and the gaps between them.
        left.data.add_(right.data)
        self._bucket.give_back(right)
        return left

    def clear(self) -> None:
        """Discards the sum and returns its memory."""
        flats = [node.value for node in self.stack] + ([] if self._leaf is None else [self._leaf])
        for flat in flats:
            self._bucket.give_back(flat)
        self._leaf, self._filled_slots, self._empty, self.stack = None, set(), [], []
        self._arrived = {}
        self._arrivals.clear()
