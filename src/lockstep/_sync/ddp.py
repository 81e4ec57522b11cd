"""PyTorch's DistributedDataParallel: buckets of gradients are reduced during the backward pass.

Its communication hook multiplies a bucket by the shard's weight, adds the sums of the process's
earlier shards, and sums over the ranks. DDP requires a gradient for every parameter on every rank.
So gradients are reduced without it, in one piece at the end of the phase: in the first step (which
shows whether all parameters are used), for a model that does not use them all, and in a step in
which some ranks have no samples.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._base.errors import ModelError, UsageError
from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._sync.gradients import (
    Gradients,
    add_weighted,
    detach_grads,
    is_left_out,
    is_narrow,
    separate,
    usable,
    weigh,
    widen,
)
from lockstep._sync.news import News
from lockstep._sync.protocol import PhaseSums, Strategy
from lockstep._sync.reduce_late import reduce_late
from lockstep._sync.sharded import ShardedStrategy, ShardedSums
from lockstep._sync.start import broadcast_from_rank_0
from lockstep._world.comm.group import Transport

# Buffers are combined over shards, so DDP's broadcast before every forward pass is off. (The option
# was renamed in 2.13.)
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}


class _Engine:
    """A model and its DistributedDataParallel."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.look()
        self.shares = False
        """Whether it shares parameters with another prepared model: they must not be reduced
        twice."""
        self.partial: set[int] = set()
        """The phases in which some loss depended on only part of the parameters."""
        self.proven: set[int] = set()
        """The phases in which every shard has been found to use all parameters, as DDP requires."""
        self.overlaps = False
        """Whether DDP reduces this model's gradients in the current micro-batch."""
        self.may_overlap = False
        """Whether it does so in the last micro-batch of the current phase."""
        self.trainable_before: list[Parameter] = []
        """The parameters that were trainable in the first phase of the last step."""
        self.build()

    def look(self) -> None:
        """Records the model's parameters. (During its passes, 16-bit copies may replace them.)"""
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}

    def learning(self) -> list[Parameter]:
        """Returns the currently trainable parameters: scripts freeze and unfreeze."""
        return [parameter for parameter in self.names if parameter.requires_grad]

    def build(self) -> None:
        """Creates the DDP. Every rank must call it: it broadcasts the parameters of rank 0."""
        self.trainable = self.learning()
        self.is_narrow = any(map(is_narrow, self.trainable))
        self.launched = 0
        self.finished = False
        self.ddp: DistributedDataParallel | None = None
        if not self.trainable:  # DDP refuses a model without trainable parameters
            return
        devices = {parameter.device for parameter in self.model.parameters()}
        device = next(iter(devices))
        self.ddp = DistributedDataParallel(
            self.model,
            device_ids=[device] if len(devices) == 1 and device.type != "cpu" else None,
            **_NO_BUFFERS,
        )


class DDPStrategy(ShardedStrategy):
    """The strategy ``ddp``.

    Args:
        num_shards: V of the run.
        find_unused: whether parameters that the first step used may be unused later, which rules
            DDP out.
    """

    def __init__(self, num_shards: int, *, find_unused: bool) -> None:
        super().__init__(num_shards, dist.get_world_size())
        self.find_unused = find_unused
        self.engines: list[_Engine] = []
        self.running: DDPSums | None = None
        """The phase that runs a backward pass through DDP, and gets its buckets."""
        self.is_weighted = False
        """Whether any backward call's sum was divided by weights: 16-bit gradients are then reduced
        without DDP."""
        self.num_calls: dict[int, int] = {}
        """The number of backward calls of each phase when it was last run."""

    @override
    def open(self, plan: StepPlan, phase: int) -> PhaseSums:
        for engine in self.engines:
            engine.look()
            if phase == 0:
                self._follow_changes(engine)
            engine.overlaps = False
        for engine in self.engines:
            engine.may_overlap = phase in engine.proven and not engine.shares and plan.num_active_ranks == self.world_size
            # 16-bit gradients must be divided by the weights before they are rounded to 16 bits,
            # which DDP does first.
            engine.may_overlap = engine.may_overlap and not (engine.is_narrow and self.is_weighted)
        return DDPSums(self, plan, phase)

    def _follow_changes(self, engine: _Engine) -> None:
        """Rebuilds the DDP after the script has frozen or unfrozen parameters. If it did so for a
        single phase (of a GAN, for example), that phase goes without DDP."""
        now, before, engine.trainable_before = engine.learning(), engine.trainable_before, engine.learning()
        if not _are_same(now, engine.trainable) and _are_same(now, before):
            engine.proven, engine.partial = set(), set()
            self._build(engine)

    @override
    def close(self) -> None:
        for engine in self.engines:
            engine.ddp, engine.overlaps = None, False

    # Models

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        broadcast_from_rank_0(model)
        engine = _Engine(model)
        for earlier in self.engines:
            if not engine.names.keys().isdisjoint(earlier.model.parameters()):
                engine.shares = earlier.shares = True
        self._register(engine)
        self.engines.append(engine)

        def forward(*args: Any, **kwargs: Any) -> Any:
            engine.overlaps = engine.overlaps and _are_same(engine.learning(), engine.trainable)
            if engine.ddp is not None and engine.overlaps:
                return engine.ddp(*args, **kwargs)
            return model(*args, **kwargs)

        return forward

    def _build(self, engine: _Engine) -> None:
        engine.build()
        self._register(engine)

    def _register(self, engine: _Engine) -> None:
        if engine.ddp is not None:
            # A lambda, since DDP checks a hook's annotations and rejects those that are strings.
            engine.ddp.register_comm_hook(engine, lambda state, bucket: self._reduce_bucket(state, bucket))

    def _reduce_bucket(self, engine: _Engine, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if self.running is None or not engine.overlaps:
            # An earlier forward pass without a backward pass has armed DDP, which mistakes this
            # backward pass for its own.
            unchanged: torch.futures.Future[Tensor] = torch.futures.Future()
            unchanged.set_result(bucket.buffer())
            return unchanged
        return self.running.reduce_bucket(engine, bucket)


class DDPSums(ShardedSums):
    """The sums of a phase. DDP reduces the gradients of the last micro-batch.

    Args:
        strategy: opens the phase.
        plan: of the step.
        phase: index of the phase in the step.
    """

    _strategy: DDPStrategy

    def __init__(self, strategy: DDPStrategy, plan: StepPlan, phase: int) -> None:
        super().__init__(strategy, plan)
        self._engines, self._phase = strategy.engines, phase
        self._factor: float | Tensor = 1.0
        self._earlier: Gradients = {}
        """The sums of this process's earlier shards, for the running backward pass to add."""
        self._launched_at_s = 0.0
        """The time at which the last bucket of the backward pass was handed to the process group;
        0: no bucket was."""
        self._overlapped: dict[int, list[_Engine]] = {}
        """The models whose gradients DDP has reduced, by backward call."""

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        super().begin_shard(micro)
        # DDP would reduce the gradients of each shard. So only the last shard runs through it, and
        # the hook adds the sums of the earlier shards: as many messages as with one shard.
        for engine in self._engines:
            engine.overlaps = micro.is_last and engine.may_overlap

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        factor, self._strategy.waited_s = usable(factor, self._parameters), 0.0
        if not any(engine.overlaps for engine in self._engines):
            super().backward(loss, call, factor, options)
            return
        self._launched_at_s = 0.0
        for engine in self._engines:
            engine.launched, engine.finished = 0, False
        self._factor, self._earlier = factor, self._sums.pop(call, {})
        self._strategy.running = self
        try:
            with self._buffers.restored_after():
                loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self._strategy.running = None
        if self._launched_at_s:
            self._strategy.waited_s = time.perf_counter() - self._launched_at_s
        self._overlapped[call] = [engine for engine in self._engines if engine.overlaps and self._has_finished(engine)]
        # DDP's sums are complete, and already weighted.
        reduced = detach_grads(p for engine in self._overlapped[call] for p in engine.trainable)
        separate(reduced)
        add_weighted(self._parameters, self._earlier, factor)
        self._sums[call] = {**self._earlier, **reduced}
        self._earlier = {}

    @override
    def end_shard(self) -> None:
        """Raises:
        UsageError: the other ranks wait in a backward pass that this rank's last shard did not run.
        """
        micro = self._micro
        assert micro is not None
        if micro.is_last and len(self._overlapped) < self._strategy.num_calls.get(self._phase, 0):
            waiting = [engine for engine in self._engines if engine.overlaps]
            if waiting and self._strategy.world_size > 1:
                raise UsageError(
                    f"step {micro.step}, shard {micro.shard}: {len(self._overlapped)} backward calls in this phase, but "
                    f"{self._strategy.num_calls[self._phase]} in earlier steps. With strategy='ddp' the other ranks wait for "
                    "them. To leave a shard out, call team.backward(loss, weight=0).",
                    code="missing-backward-call",
                )
        super().end_shard()
        for engine in self._engines:
            engine.overlaps = False  # forward passes outside of the shards are local

    @override
    def finish(self, divisors: Sequence[float | None], news: News) -> None:
        self._strategy.num_calls[self._phase] = len(divisors)
        self._strategy.is_weighted = self._strategy.is_weighted or any(divisor is not None for divisor in divisors)
        super().finish(divisors, news)

    @override
    def abandon(self) -> None:
        super().abandon()
        for engine in self._engines:
            engine.overlaps = False

    def _reduce(self, call: int) -> Gradients:
        sums = self._sums.pop(call, {})
        done: set[Parameter] = {p for engine in self._overlapped.get(call, ()) for p in engine.trainable}
        for engine in self._engines:
            if engine not in self._overlapped.get(call, ()):
                self._reduce_late(engine, sums, done)
        return sums

    def reduce_bucket(self, engine: _Engine, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Starts reducing a bucket. Called by DDP within the backward pass."""
        engine.launched += 1
        self._launched_at_s = time.perf_counter()
        engine.finished = engine.finished or bucket.is_last()
        buffer = bucket.buffer()
        total = torch.zeros_like(widen(buffer)) if is_left_out(self._factor) else weigh(buffer, self._factor)
        total = self._add_earlier(total, bucket.parameters())
        work = dist.all_reduce(total, async_op=True)
        assert work is not None

        def finish(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            reduced = done.value()[0]
            return reduced if reduced.dtype == buffer.dtype else buffer.copy_(reduced)

        future: torch.futures.Future[Tensor] = work.get_future().then(finish)
        return future

    def _add_earlier(self, bucket: Tensor, parameters: list[Tensor]) -> Tensor:
        """Adds the sums of this process's earlier shards to a bucket."""
        if not self._earlier:
            return bucket
        # DDP gives the real and imaginary parts of complex gradients, side by side.
        are_parts = parameters[0].is_complex() and not bucket.is_complex()
        numbers = torch.view_as_complex(bucket.view(-1, 2)) if are_parts else bucket
        offset = 0
        for parameter in parameters:
            earlier = self._earlier.pop(parameter, None)  # type: ignore[call-overload]
            if earlier is not None:
                # A bucket holds each gradient in its parameter's memory order (channels_last, say).
                numbers.as_strided(parameter.size(), parameter.stride(), offset).add_(earlier)
            offset += parameter.numel()
        return bucket

    def _has_finished(self, engine: _Engine) -> bool:
        """Whether DDP has reduced the model's gradients, or there are none. False if all of them
        are still to be reduced.

        Raises:
            ModelError: DDP waits for a parameter that this loss does not reach, so the other ranks
                would wait too.
        """
        if engine.finished:
            return True
        unused = [name for p, name in engine.names.items() if p.requires_grad and p.grad is None]
        in_earlier_shards = any(parameter in self._earlier for parameter in engine.trainable)
        if engine.launched == 0 and len(unused) == len(engine.trainable) and not in_earlier_shards:
            return True  # this loss has nothing to do with the model
        if engine.launched == 0 and not unused:
            # a second backward pass through the same forward pass: DDP reduces only the first
            return False
        names = ", ".join(unused[:8]) + (f" and {len(unused) - 8} more" if len(unused) > 8 else "")
        raise ModelError(
            f"step {self._plan.number}: {type(engine.model).__name__} used all its parameters in the "
            f"first step, but now the loss does not depend on {names or 'some of them'}, and the other ranks wait for their "
            "gradients. If some steps do not use all parameters, call lockstep.join(find_unused_parameters=True).",
            code="unused-parameters",
        )

    def _reduce_late(self, engine: _Engine, sums: Gradients, done: set[Parameter]) -> None:
        """Reduces a model's gradients in one piece, with a count of the ranks that have one for
        each parameter."""
        trainable = [p for p in engine.learning() if p not in done]
        done.update(trainable)
        engine_sums: Gradients = {p: sums.pop(p) for p in trainable if p in sums}
        all_used = reduce_late(trainable, engine_sums, self._strategy.world_size)
        sums.update(engine_sums)
        everyone = self._plan.num_active_ranks == self._strategy.world_size
        if everyone and engine_sums and not self._strategy.find_unused:
            if not all_used:
                engine.partial.add(self._phase)
                engine.proven.discard(self._phase)
            elif self._phase not in engine.partial and _are_same(engine.learning(), engine.trainable):
                engine.proven.add(self._phase)


def _are_same(left: list[Parameter], right: list[Parameter]) -> bool:
    return list(map(id, left)) == list(map(id, right))


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Strategy:
    """Creates the strategy for ``sync.table.make_strategy``."""
    return DDPStrategy(num_shards, find_unused=config.find_unused_parameters)
