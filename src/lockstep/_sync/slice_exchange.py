"""The exchange of gradients under ``fsdp``: each rank sends every owner its slices of a shard's
leaf, and the owner adds them.

Every rank must make the same calls in the same order. On a GPU all runs on a stream, and the CPU
never waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._plan.shards import MicroBatch
from lockstep._sync.slice_sum import SliceSum
from lockstep._sync.slices import Slices
from lockstep._sync.timed_comms import Waited
from lockstep._world.arrivals import Arrivals
from lockstep._world.comm.group import default_group
from lockstep._world.devices import in_current_stream


class SliceExchange:
    """The leaves of the running backward pass, and the sums of the phase over all shards, of which
    this rank has its slices.

    Args:
        rank: this process's rank.
        blocks: the shards of ranks 0, 1, ..., equally many.
        device: the device of the gradients.
        waited: receives how long this rank has waited in it.
    """

    def __init__(self, rank: int, blocks: Sequence[range], device: torch.device, waited: Waited) -> None:
        self._blocks, self._first = blocks, blocks[rank].start
        self._device = device
        self._waited = waited
        self._stream = torch.Stream(device) if len(blocks) > 1 and device.type != "cpu" else None
        self._arrivals = Arrivals()
        """The gradients that are about to be put."""
        self._sending: tuple[Tensor, torch.Event] | None = None
        """The newest leaf that the stream sends, and the event after which its memory is free."""
        self.clear()

    def clear(self) -> None:
        """Discards everything. Local."""
        self._on_its_stream: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        """The stream in which the script runs the backward pass. Leaves are in its memory, and are
        written in it alone, whichever streams compute the gradients."""
        self._sums: dict[tuple[int, Slices], SliceSum] = {}
        """The sum of each backward call and group of parameters."""
        self._begin(0)

    def begin_backward(self, call: int) -> None:
        """Begins a backward pass: what was put and not sent is discarded. Local.

        Args:
            call: the number of the backward call within the micro-batch.
        """
        self._on_its_stream = in_current_stream(self._device)
        self._begin(call)

    def _begin(self, call: int) -> None:
        self._call = call
        self._leaves: dict[Slices, Tensor] = {}
        self._filled: dict[Slices, set[int]] = {}
        """The slots of these leaves that have a gradient."""

    def put(self, slices: Slices, slot: int, gradient: Tensor, factor: float | Tensor) -> None:
        """Puts a whole gradient, multiplied by ``factor``, into the leaf of its slices, or adds it
        to what is there. Local."""
        self._arrivals.note(gradient)
        with self._on_its_stream:
            self._arrivals.wait()
            if slices not in self._leaves:
                self._leaves[slices], self._filled[slices] = slices.new_leaf(), set()
            filled = self._filled[slices]
            slices.put(self._leaves[slices], slot, gradient, factor, adds=slot in filled)
            filled.add(slot)

    def holds(self, slices: Slices) -> bool:
        """Whether gradients of these slices were put and not sent."""
        return slices in self._leaves

    @torch.no_grad()
    def send(self, slices: Slices, micro: MicroBatch) -> None:
        """Sends the leaf of a micro-batch's backward pass to its owners, and adds what they send.
        Every rank must call it."""
        leaf = self._leaves.pop(slices, None)
        # This rank's shard has no gradient for the unit, but another rank's may: all must take part
        # in the all-to-all, unless all know that there is none because the parameters are frozen.
        if leaf is None and not any(parameter.requires_grad for parameter in slices.parameters):
            return
        with self._on_its_stream:
            leaf = slices.complete(slices.new_leaf() if leaf is None else leaf, self._filled.pop(slices, ()))
            with self._on_stream():
                key = (self._call, slices)
                if key not in self._sums:
                    self._sums[key] = SliceSum(slices, self._blocks)
                self._sums[key].add(micro.shard - self._first, self._swap(leaf))
                # The total is taken now, and not at the end of the phase, to free the memory of the
                # leaves.
                if micro.is_last:
                    self._sums[key].total()
                if self._stream is not None:
                    self._sending = (leaf, self._stream.record_event())

    def totals(self) -> Iterator[tuple[int, Slices, Tensor]]:
        """Returns the sums over all shards, by backward call: this rank's slices, shape
        ``(width,)``."""
        if self._stream is not None:
            torch.accelerator.current_stream(self._device).wait_stream(self._stream)
        for call, slices in sorted(self._sums, key=lambda key: key[0]):
            total = self._sums[call, slices].total()
            # where its memory is from, and which may use it again only behind the script's
            if self._stream is not None:
                total.record_stream(torch.accelerator.current_stream(self._device))
            yield call, slices, total

    def _swap(self, leaf: Tensor) -> Tensor:
        """Sends each rank its row of a leaf. Row r of the result is what rank r has sent."""
        if len(self._blocks) == 1:
            return leaf
        received = torch.empty_like(leaf)
        self._waited.call(dist.all_to_all_single, received.view(-1), leaf.view(-1), group=default_group())
        return received

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        if self._stream is None:
            return contextlib.nullcontext()
        current = torch.accelerator.current_stream(self._device)
        self._stream.wait_stream(current)
        if self._sending is not None:  # it may be freed only when it has been read
            current.wait_event(self._sending[1])
            self._sending = None
        return self._stream
