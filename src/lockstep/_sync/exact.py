"""Gradients summed in one fixed tree over shard numbers: bit-identical for every number of
processes.

The gradients of a shard are a leaf: weighted, in float32 or wider, with ABSENT (``sync.gradients``:
-0.0, which changes no sum) where the shard has none. A process sums its leaves in tree order
(``plan.tree``). On its last shard it sends each bucket that earlier phases had (``sync.exchange``)
as soon as the backward pass has filled it, if that is too much for one message at the end. Buffers
go through the same tree. A single process with several shards runs the same code without sending
anything. (One shard on one process needs none of it: ``auto`` is then ``single``.)

A phase on one rank that has the shards 3, 4 and 5 of six, and two buckets of gradients::

    shard 3   backward   leaves of 3            nothing is sent: the roots of this rank's block are
    shard 4   backward   leaves of 4            3 and (4+5), which go together, and 5 is missing
    shard 5   backward   leaf of 5, bucket 0 full  ->  start(roots of bucket 0)
              |          leaf of 5, bucket 1 full  ->  start(roots of bucket 1)
    end of the loop      rows of all ranks (``loop.exchange``), new buckets, buffers, wait, .grad

Ranks may have different numbers of shards, or none in a step, and their backward passes fill
buckets at different times. They still make the same sequence of exchanges:

1. buckets that earlier phases of this index had, sorted by backward call and bucket: within the
   last backward pass, or in ``news`` by a rank that has no such backward pass;
2. the rows of all ranks, from which each rank learns which other buckets some rank has;
3. these buckets, sorted, and the changes of buffers.

A phase's index is its place in its step, from 0. For example, a GAN trains its critic in phase 0 of
every step and its generator in phase 1, which have different buckets.

Why it does not deadlock: posting a message does not block, and every rank posts and waits in one
order (that of ``sync.exchange``, for this sequence). A rank waits for a message only after the
point in the sequence at which the message is posted. So the rank that is furthest behind never
waits for another: what it waits for was posted by all ranks that are at least as far. Then no set
of ranks can wait for each other in a circle, whatever their speed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._base.errors import UsageError
from lockstep._plan.blocks import Blocks
from lockstep._plan.shards import MicroBatch, StepPlan, num_filled
from lockstep._plan.tree import Node, push
from lockstep._sync.bucket_sum import BucketSum
from lockstep._sync.buckets import keep_freed_memory
from lockstep._sync.buffers import ShardBuffers, add_changes
from lockstep._sync.exchange import Exchange
from lockstep._sync.gradients import (
    came_in_pieces,
    has_gradient,
    on_gradient,
    refuse_create_graph,
    unusable,
)
from lockstep._sync.layouts import History, Layout, Layouts, UsedSlots
from lockstep._sync.news import News
from lockstep._sync.ordered import OrderedExchange
from lockstep._sync.protocol import PhaseSums, Strategy
from lockstep._sync.start import broadcast_from_rank_0
from lockstep._world.comm.group import Transport

MAX_SINGLE_MESSAGE_BYTES = 1 << 20
"""The most bytes that a rank receives in one message with the rows of all ranks. More are better
sent in buckets during the backward pass (0.5M parameters, 2 MB, on 2 processes: 1.04 of DDP's time
in buckets, 1.11 together)."""


def _cut_off() -> UsageError:
    return UsageError(
        "a loop over batch.shards was left early, by break or a caught error, after this rank had begun to send its gradients: "
        "they cannot be recalled, so training cannot continue. Let the error end the script: the run resumes from its newest "
        "checkpoint. To skip a shard (one with a NaN loss), use `continue` before team.backward.",
        code="gradients-already-sent",
    )


class ExactStrategy(Strategy):
    """The strategy ``exact``.

    Args:
        rank: this process's rank.
        world_size: number of processes.
        num_shards: V of the run.
        ranks_per_machine: number of consecutive ranks on each machine; 1 if machines differ in it.
        between_machines: whether any messages go over a network.
        gpus: the devices whose gradients are exchanged by collectives (NCCL); others use tagged
            messages (Gloo).
    """

    forward_is_collective = False
    is_plain = False
    waited_s = waited_in_forward_s = 0.0
    times_forward = True

    def __init__(
        self,
        rank: int,
        world_size: int,
        num_shards: int,
        *,
        ranks_per_machine: int = 1,
        between_machines: bool = False,
        gpus: Sequence[torch.device] = (),
    ) -> None:
        self.replaced: dict[Parameter, Parameter] = {}
        self.rank, self.world_size = rank, world_size
        self.exchange = Exchange(rank, ranks_per_machine=ranks_per_machine, between_machines=between_machines)
        self.on_gpus = {gpu: OrderedExchange(rank, gpu, ranks_per_machine=ranks_per_machine) for gpu in gpus}
        self.names: dict[Parameter, str] = {}
        """The names of the parameters of all models. Their order numbers them."""
        self.buffers = ShardBuffers()
        self.running: ExactSums | None = None
        """The phase that runs a backward pass, and gets its gradients."""
        self.left_mid_exchange = False
        """Whether a phase was left while its sums were exchanged."""
        self._num_shards = num_shards
        self._num_phases = 0
        self._layouts = Layouts(world_size if gpus else 1)
        self._histories: dict[int, History] = {}
        """The history of each phase index."""
        self._hooks: list[RemovableHandle] = []
        self._hook_lock = threading.Lock()
        """The lock of gradient hooks: autograd has a thread per GPU, and the modules of a model may
        be on several."""
        keep_freed_memory()

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        if self.world_size > 1:
            broadcast_from_rank_0(model)
        for name, parameter in model.named_parameters():
            if parameter not in self.names:
                if has_gradient(parameter):
                    self._hooks.append(on_gradient(parameter, functools.partial(self._arrived, len(self.names))))
                self.names[parameter] = name
        self.buffers.attach(model)
        return model

    def _arrived(self, number: int, parameter: Parameter) -> None:
        """Moves the new gradient of a parameter of this number into its bucket while it is in the
        CPU cache. Called by autograd during the backward pass."""
        # In one function, which therefore reads what belongs to the sums: for a short gradient, a
        # call in Python takes as long as multiplying it.
        sums = self.running
        if sums is None or (place := sums.places.get(number)) is None:
            return
        with self._hook_lock:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None or gradient.is_sparse:
                raise unusable(gradient, self.names[parameter])
            index, slot = place
            bucket_sum = sums.filling[index]
            if bucket_sum.is_sent:
                raise came_in_pieces(self.names[parameter])
            bucket_sum.take(slot, gradient)
            if not bucket_sum.missing:
                sums.filled(bucket_sum)

    @override
    def open(self, plan: StepPlan, phase: int) -> PhaseSums:
        if self.left_mid_exchange:
            raise _cut_off()
        self.buffers.begin_phase(num_filled(plan.sizes, self._num_shards))
        layout, blocks = self._lay_out(plan.number), plan.blocks
        history = self._histories.setdefault(phase, History())
        self._num_phases += 1
        if phase == 0:
            self.exchange.begin_step()
        self.exchange.begin_phase(self._num_phases, blocks.roots, defers=self._fits_one_message(layout, blocks))
        for exchange in self.on_gpus.values():
            exchange.begin_phase(blocks.roots)
        return ExactSums(self, layout, history, blocks.by_rank[self.rank])

    def _lay_out(self, step: int) -> Layout:
        """Returns the bucket layout for the current set of trainable parameters."""
        layout, dropped = self._layouts.choose(self.names, step)
        if dropped is not None:
            for history in self._histories.values():
                history.forget(dropped)
        return layout

    def _fits_one_message(self, layout: Layout, blocks: Blocks) -> bool:
        """Whether the gradients of a phase are sent together with the rows of its ranks."""
        if self.world_size == 1 or any(bucket.device.type != "cpu" for bucket in layout.buckets):
            return False
        # Nodes of one rank x bytes of a node x other ranks. In an all-gather all ranks send as many
        # nodes as the rank with the most, so that the rows have one length.
        size = sum(bucket.length * bucket.dtype.itemsize for bucket in layout.buckets)
        return size * blocks.most_roots * (self.world_size - 1) <= MAX_SINGLE_MESSAGE_BYTES

    @override
    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class ExactSums(PhaseSums):
    """The sums of a phase, by backward call and bucket.

    Args:
        strategy: opens the phase.
        layout: of the buckets.
        history: what earlier phases of this index have sent.
        block: this rank's shards.
    """

    def __init__(self, strategy: ExactStrategy, layout: Layout, history: History, block: range) -> None:
        self._strategy, self._layout, self._history, self._block = strategy, layout, history, block
        self._buffers, self._exchange = strategy.buffers, strategy.exchange
        self._micro: MicroBatch | None = None
        self._sums: dict[tuple[int, int], BucketSum] = {}
        """The sum of each bucket, by backward call and bucket."""
        self._has_sent = False
        """Whether any sum was sent: also after the exchange, since an error may follow it."""
        self._num_calls = 0
        """The number of backward calls in this process's last micro-batch."""
        self._changes: list[Node[dict[int, Tensor]]] = []
        self._next_shard = block.start
        """This process's first shard that has yet to run."""
        self._call = 0
        self.places = layout.places
        """The bucket and slot of each parameter's gradient, by the parameter's number."""
        self.filling: list[BucketSum] = []
        """For each bucket, the sum that gets the gradients of the current backward pass."""
        self._send_when_full: list[int] = []
        """The buckets that the current backward pass has yet to send, in order."""

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        self._micro = micro

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        micro, strategy = self._micro, self._strategy
        assert micro is not None
        refuse_create_graph(options, "exact")
        if isinstance(factor, Tensor) and any(bucket.device.type == "cpu" for bucket in self._layout.buckets):
            factor = float(factor)
        self._call = call
        self.filling = [self._sum(call, index) for index in range(len(self._layout.buckets))]
        for bucket_sum in self.filling:
            bucket_sum.begin_backward(factor)
        # Only in the last micro-batch: before that, this rank's roots lack a leaf. So communication
        # overlaps with the last of its backward passes, and with none of the others.
        self._send_when_full = self._foreseen(call) if micro.is_last else []
        strategy.running = self
        try:
            self._exchange.waited_s = 0.0
            with self._buffers.restored_after():
                loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            strategy.running = None
        for bucket_sum in self.filling:
            bucket_sum.end_backward()
        self._send_complete()
        strategy.waited_s = self._exchange.waited_s
        if micro.is_last:
            self._num_calls = call + 1

    @override
    def end_shard(self) -> None:
        micro, self._micro = self._micro, None
        assert micro is not None
        changes = self._buffers.end_shard(micro)
        if changes is not None:
            self._end_leaves(micro.shard, changes)

    def _end_leaves(self, shard: int, changes: dict[int, Tensor]) -> None:
        for bucket_sum in self._sums.values():
            if not bucket_sum.is_sent:
                bucket_sum.end_shard(shard)
        push(self._changes, Node(shard, 1, changes), add_changes)
        self._next_shard = shard + 1

    @override
    def news(self) -> News:
        with torch.no_grad():
            for shard in range(self._next_shard, self._block.stop):  # shards without samples
                self._end_leaves(shard, {})
            # Backward calls that this process has not made, because it has no samples in this step
            # or its last shard left the call out. Other ranks have started these buckets and wait
            # for them, so they must be posted before the rows are exchanged.
            for call in range(self._num_calls, self._most_calls()):
                for index in self._foreseen(call):
                    self._start(call, index)
        modules = {number for node in self._changes for number in node.value}
        sent = self._sent()
        return News(
            buckets=[key for key in sorted(self._sums) if key not in sent and self._sums[key].used],
            slots=[key for key in sent if self._has_other_slots(*key)],
            modules=sorted(modules - self._history.modules),
            looks=self._buffers.looks(),
        )

    def _has_other_slots(self, call: int, index: int) -> bool:
        known = self._history.slots.get((self._layout, call, index))
        return known is not None and known.own != self._sums[call, index].used

    @torch.no_grad()
    @override
    def gather(self, row: list[float]) -> list[list[float]] | None:
        return self._exchange.gather(row) if self._exchange.defers else None

    @torch.no_grad()
    @override
    def finish(self, divisors: Sequence[float | None], news: News) -> None:
        # Sorted: every rank must start new buckets in the same order, since the tags of messages
        # are assigned in the order of starts. (The news came by rank, each rank's own first seen
        # first.)
        for call, index in sorted(news.buckets):
            self._start(call, index)
            self._history.buckets.setdefault((self._layout, call), set()).add(index)
        for call, index in news.slots:
            self._history.slots[self._layout, call, index] = None
        self._history.modules.update(news.modules)
        changes = self._buffers.start_sums(self._history.modules, self._changes, self._send)
        self._exchange.finish()
        for exchange in self._strategy.on_gpus.values():
            exchange.finish()
        self._buffers.apply(changes)
        self._buffers.warn_of_lost_changes(news.looks)
        for call, index in self._sent():
            divisor = divisors[call] if call < len(divisors) else None
            # Divided once, after the sum: dividing each leaf would round V times, and the total of
            # the weights is known only after the last shard. (It divides the counts, too: > 0 stays
            # > 0.)
            if divisor is not None:
                self._sums[call, index].stack[0].value.data.div_(divisor)
            self._set_gradients(call, index, self._sums.pop((call, index)))
        self._clear()

    @override
    def abandon(self) -> None:
        # What was sent cannot be recalled: peers that have not received it would add it to later
        # gradients. (Gradients that are deferred to one message at the end were not sent.)
        self._strategy.left_mid_exchange |= self._strategy.world_size > 1 and self._has_sent and not self._exchange.defers
        self._buffers.rewind()
        self._clear()

    def _clear(self) -> None:
        for bucket_sum in self._sums.values():
            bucket_sum.clear()

    def _sent(self) -> list[tuple[int, int]]:
        """Returns the keys of the sums that are being exchanged."""
        return sorted(key for key, bucket_sum in self._sums.items() if bucket_sum.is_sent)

    def _foreseen(self, call: int) -> list[int]:
        """Returns the buckets that are sent as soon as the backward pass has filled them, in
        order."""
        return sorted(self._history.buckets.get((self._layout, call), ()))

    def _most_calls(self) -> int:
        return max((call + 1 for layout, call in self._history.buckets if layout is self._layout), default=0)

    # The backward pass

    def filled(self, bucket_sum: BucketSum) -> None:
        """Sends what is complete, now that the backward pass has filled a bucket. Called within
        it."""
        if bucket_sum.has_arrived:
            with bucket_sum.on_its_stream:
                bucket_sum.flush()
        self._send_complete()

    def _sum(self, call: int, index: int) -> BucketSum:
        if (call, index) not in self._sums:
            self._sums[call, index] = BucketSum(self._layout.buckets[index], range(self._block.start, self._next_shard))
        return self._sums[call, index]

    def _send_complete(self) -> None:
        """Sends the complete buckets, in order. Does nothing before the last micro-batch."""
        assert self._micro is not None
        # In order, although a later bucket may be complete first: autograd's order depends on the
        # graph, which may differ between ranks, and two ranks that start in different orders would
        # match each other's messages of different buckets. A complete bucket waits for the ones
        # before it.
        while self._send_when_full and not self.filling[self._send_when_full[0]].missing:
            index = self._send_when_full.pop(0)
            bucket_sum = self.filling[index]
            with bucket_sum.on_its_stream:
                for shard in range(self._micro.shard, self._block.stop):
                    bucket_sum.end_shard(shard)
                self._start(self._call, index)

    def _start(self, call: int, index: int) -> None:
        """Starts exchanging this process's sums of a bucket."""
        bucket_sum = self._sum(call, index)
        bucket_sum.make_whole()
        bucket_sum.is_sent = self._has_sent = True
        self._send([node.value.data for node in bucket_sum.stack])

    def _send(self, nodes: list[Tensor]) -> None:
        """Starts summing tensors over all ranks; ``nodes[0]`` becomes the sum."""
        (self._strategy.on_gpus.get(nodes[0].device) or self._exchange).start(nodes)

    def _set_gradients(self, call: int, index: int, bucket_sum: BucketSum) -> None:
        """Sets the gradients of a bucket's parameters to their sums, where any shard had one."""
        bucket, flat = self._layout.buckets[index], bucket_sum.stack[0].value
        for node in bucket_sum.stack[1:]:
            bucket.give_back(node.value)
        slots = self._used((self._layout, call, index), bucket_sum.used, flat.counts)
        for slot, view in zip(slots, bucket.lend(flat, slots), strict=True):
            parameter = bucket.parameters[slot]
            gradient = view if view.dtype == parameter.dtype else view.to(parameter.dtype)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def _used(self, key: tuple[Layout, int, int], own: set[int], counts: Tensor) -> list[int]:
        """Returns the slots in which any shard had a gradient.

        Args:
            key: the layout, the backward call and the bucket.
            own: the slots in which a shard of this process had one.
            counts: the numbers of shards that had one, by slot, summed over all processes.
        """
        if self._strategy.world_size == 1:
            return sorted(own)
        # A gradient of zeros and no gradient differ: optimizers with momentum or weight decay skip
        # a parameter whose .grad is None. So the counts behind each bucket are summed with it.
        known = self._history.slots.get(key)
        if known is not None:
            return known.any_shard
        used = [slot for slot, count in enumerate(counts.tolist()) if count > 0]
        if not counts.is_cpu:
            self._history.slots.setdefault(key, UsedSlots(own, used))
        return used


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Strategy:
    """Creates the strategy for ``sync.table.make_strategy``."""
    return ExactStrategy(
        dist.get_rank(),
        dist.get_world_size(),
        num_shards,
        ranks_per_machine=transport.ranks_per_machine,
        between_machines=transport.interface != "lo",
        gpus=devices if transport.is_on_devices else (),
    )
