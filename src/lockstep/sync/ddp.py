"""PyTorch's DistributedDataParallel: buckets of gradients are reduced while the backward pass still runs.

Its communication hook multiplies a bucket by the shard's weight, adds the process's earlier shards, and sums over the
ranks. DDP counts on a gradient for every parameter on every rank. So gradients are reduced without it, in one piece after
the backward pass, in the first step (which shows whether all parameters are used), for a model that does not use them all,
and in a step in which some ranks have no samples.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from lockstep.comm.group import Meeting, listening_on
from lockstep.errors import ModelError, UsageError
from lockstep.plan.shards import MicroStep
from lockstep.sync.gradients import Gradients, widen
from lockstep.sync.sharded import ShardedSync
from lockstep.sync.start import take_from_rank_0

# Buffers are combined shard by shard, so DDP's own broadcast before every forward pass is off. (Its name changed in 2.13.)
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}


class _Engine:
    """One model in a DistributedDataParallel of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shares = False
        """Whether another prepared model has some of its parameters: then nobody may reduce them twice."""
        self.partial = False
        """Whether a loss was seen that depends on some of the parameters only."""
        self.proven = False
        """Whether a step has shown that all parameters are used by every shard, which is what DDP counts on."""
        self.overlaps = False
        """Whether DDP reduces this model's gradients in the micro-step at hand."""
        self.sparse = [m.weight for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse]
        self.build()

    def build(self) -> None:
        """Make the DDP. Every rank must call it: it gives all ranks the parameters of rank 0."""
        self.trainable = _trainable(self.model)
        self.is_narrow = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in self.trainable)
        self.launched = 0
        self.finished = False
        self.ddp: DistributedDataParallel | None = None
        if not self.trainable:  # DDP refuses a model that does not learn
            return
        cards = {parameter.device for parameter in self.model.parameters()}
        device = next(iter(cards))
        self.ddp = DistributedDataParallel(
            self.model,
            device_ids=[device] if len(cards) == 1 and device.type == "cuda" else None,
            **_NO_BUFFERS,
        )


class DataParallel(ShardedSync):
    """The strategy ``ddp``.

    Args:
        num_shards: V of the run.
        meeting: how the ranks reach each other.
        find_unused: whether parameters that the first step used may be unused later, so that DDP cannot be relied on.
    """

    def __init__(self, num_shards: int, meeting: Meeting, *, find_unused: bool) -> None:
        super().__init__(num_shards)
        self._meeting = meeting
        self._find_unused = find_unused
        self._world_size = dist.get_world_size()
        self._engines: list[_Engine] = []
        self._subgroups: dict[int, dist.ProcessGroup] = {}
        self._share = 1.0
        self._agreed: set[int] = set()
        """The backward calls of a body of which the ranks have told each other whether they have weights."""
        self._earlier: Gradients = {}

    def begin(self, turn: MicroStep) -> None:
        """See Sync."""
        super().begin(turn)
        all_active = turn.num_active_ranks == self._world_size
        for engine in self._engines:
            if turn.index == 0 and all_active and not _same(_trainable(engine.model), engine.trainable):
                engine.proven = engine.partial = False  # parameters were frozen, or thawed
                self._build(engine)
            # 16-bit gradients must be divided by the weights before they are narrowed: DDP hands them on narrowed.
            suits = not engine.shares and not (engine.is_narrow and any(self._weighted.values()))
            engine.overlaps = engine.proven and suits and turn.is_last and all_active

    def end_step(self) -> None:
        """See Sync."""
        super().end_step()
        for engine in self._engines:
            engine.overlaps = False  # a forward pass outside of the loop is this rank's own

    def close(self) -> None:
        """See Sync."""
        self._subgroups.clear()
        for engine in self._engines:
            engine.ddp, engine.overlaps = None, False

    # How a model runs

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        take_from_rank_0(model)
        engine = _Engine(model)
        own = set(model.parameters())
        for other in self._engines:
            if not own.isdisjoint(other.model.parameters()):
                engine.shares = other.shares = True
        self._register(engine)
        self._engines.append(engine)

        def forward(*args: Any, **kwargs: Any) -> Any:
            engine.overlaps = engine.overlaps and _same(_trainable(model), engine.trainable)
            if engine.ddp is not None and engine.overlaps:
                return engine.ddp(*args, **kwargs)
            return model(*args, **kwargs)

        return forward

    def _build(self, engine: _Engine) -> None:
        engine.build()
        self._register(engine)

    def _register(self, engine: _Engine) -> None:
        if engine.ddp is not None:
            # A lambda, since DDP looks at a hook's annotations and takes those that are strings for wrong ones.
            engine.ddp.register_comm_hook(engine, lambda state, bucket: self._reduce_bucket(state, bucket))

    # How gradients meet

    def _backward_and_reduce(self, loss: Tensor, call: int, share: float, options: dict[str, Any]) -> Gradients:
        for engine in self._engines:
            engine.launched, engine.finished = 0, False
        self._share, self._earlier = share, self._sums.take(call)
        loss.backward(**options)  # type: ignore[no-untyped-call]
        sums: Gradients = {}
        done: set[Parameter] = set()
        for engine in self._engines:
            if not (engine.overlaps and self._has_finished(engine)):
                sums.update(self._reduce_afterwards(engine, share, done))
        self._earlier = {}
        return sums

    def _reduce_bucket(self, engine: _Engine, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if not engine.overlaps:
            # DDP was prepared by a forward pass that had no backward pass, and takes this one for it.
            unchanged: torch.futures.Future[Tensor] = torch.futures.Future()
            unchanged.set_result(bucket.buffer())
            return unchanged
        engine.launched += 1
        engine.finished = engine.finished or bucket.is_last()
        buffer = bucket.buffer()
        total = widen(buffer)
        if self._share == 0:
            total = torch.zeros_like(total)  # and not 0 * NaN
        elif self._share != 1.0:
            total.mul_(self._share)
        total = self._add_earlier(total, bucket.parameters())
        work = dist.all_reduce(total, async_op=True)
        assert work is not None

        def finish(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            reduced = done.value()[0]
            return reduced if reduced.dtype == buffer.dtype else buffer.copy_(reduced)

        future: torch.futures.Future[Tensor] = work.get_future().then(finish)
        return future

    def _add_earlier(self, bucket: Tensor, parameters: list[Tensor]) -> Tensor:
        """The bucket with the sums of this process's earlier shards."""
        if not self._earlier:
            return bucket
        if bucket.is_sparse:  # then it holds one parameter
            earlier = self._earlier.pop(parameters[0], None)  # type: ignore[call-overload]
            return bucket if earlier is None else (bucket + earlier).coalesce()
        offset = 0
        for parameter in parameters:
            earlier = self._earlier.pop(parameter, None)  # type: ignore[call-overload]
            if earlier is not None:
                # A bucket holds each gradient in its parameter's own memory order (channels_last, say).
                bucket.as_strided(parameter.size(), parameter.stride(), offset).add_(earlier)
            offset += parameter.numel()
        return bucket

    def _has_finished(self, engine: _Engine) -> bool:
        """Whether DDP has reduced the model's gradients, or there are none. False if it has left them all to us.

        Raises:
            ModelError: it waits for a parameter that this loss does not reach, and the other ranks would wait for it.
        """
        if engine.finished:
            return True
        unused = [name for name, p in engine.model.named_parameters() if p.requires_grad and p.grad is None]
        in_earlier_shards = any(parameter in self._earlier for parameter in engine.trainable)
        if engine.launched == 0 and len(unused) == len(engine.trainable) and not in_earlier_shards:
            return True  # this loss has nothing to do with the model
        if engine.launched == 0 and not unused:
            return False  # a second backward pass through one forward pass: DDP reduces the first only
        names = ", ".join(unused[:8]) + (f" and {len(unused) - 8} more" if len(unused) > 8 else "")
        raise ModelError(
            f"step {self._turn.step if self._turn else '?'}: {type(engine.model).__name__} used all its parameters "
            f"in the first step, but now the loss does not depend on {names or 'some of them'}, and the other ranks wait "
            "for their gradients. If parameters are used in some steps only, say so: "
            "lockstep.join(find_unused_parameters=True)."
        )

    def _reduce_afterwards(self, engine: _Engine, share: float, done: set[Parameter]) -> Gradients:
        """Reduce a model's gradients in one piece, with a count of the ranks that have one for each parameter."""
        trainable = [p for p in _trainable(engine.model) if p not in done]  # as it is now: scripts freeze and thaw
        done.update(trainable)
        sums: Gradients = {p: self._earlier.pop(p) for p in trainable if p in self._earlier}
        partial = _add_last(trainable, sums, share)
        group = self._active_group()
        used = torch.tensor([float(p in sums) for p in trainable] + [float(partial)])
        if group is not None:
            dist.all_reduce(used, group=group)
            _add_absent(engine, trainable, sums, used.tolist())
            _all_reduce_sums(sums, group)
        everyone = self._turn is not None and self._turn.num_active_ranks == self._world_size
        if everyone and used[:-1].any() and not self._find_unused:
            engine.partial = engine.partial or bool(used[-1])
            engine.proven = not engine.partial
        return sums

    def _active_group(self) -> dist.ProcessGroup | None:
        """The ranks that have samples in this step; None if there is only this one."""
        assert self._turn is not None
        size = self._turn.num_active_ranks
        if size == 1:
            return None
        if size == self._world_size:
            return dist.group.WORLD
        if size not in self._subgroups:
            with listening_on(self._meeting):
                # Gloo, which takes tensors on cards too: NCCL would split the group, and wait for the ranks outside.
                ranks = list(range(size))
                self._subgroups[size] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        return self._subgroups[size]

    # What else must agree

    def _start_agreeing(
        self, call: int, total: float | None, changed: list[bool]
    ) -> Callable[[], tuple[float | None, list[bool]]]:
        group = self._active_group()
        if group is None or (call in self._agreed and total is None and not changed):
            return lambda: (total, changed)
        self._agreed.add(call)
        weighted = total is not None
        message = torch.tensor([total or 0.0, float(weighted), *map(float, changed)], dtype=torch.float64)
        work = dist.all_reduce(message, group=group, async_op=True)
        assert work is not None

        def wait() -> tuple[float | None, list[bool]]:
            work.wait()
            summed, num_weighted, *flags = message.tolist()
            if num_weighted not in (0, dist.get_world_size(group)):
                raise UsageError(
                    f"{num_weighted:.0f} of {dist.get_world_size(group)} ranks gave backward() a weight: all shards must "
                    "give one, or none may"
                )
            return (summed if weighted else None), [flag > 0 for flag in flags]

        return wait

    def _buffer_reduction(self) -> Callable[[Tensor], None] | None:
        group = self._active_group()
        if group is None:
            return None

        def all_reduce(flat: Tensor) -> None:
            dist.all_reduce(flat, group=group)

        return all_reduce


def _trainable(model: nn.Module) -> list[Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _same(some: list[Parameter], others: list[Parameter]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _add_last(parameters: list[Parameter], sums: Gradients, share: float) -> bool:
    """Add the last shard's gradients to the sums. Whether it used some of the parameters, but not all."""
    missing = 0
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            missing += 1
            continue
        if share == 0:
            continue
        part = widen(gradient).mul_(share)
        sums[parameter] = sums[parameter].add_(part) if parameter in sums else part
    return 0 < missing < len(parameters)


def _add_absent(engine: _Engine, trainable: list[Parameter], sums: Gradients, used: list[float]) -> None:
    """Put sums in order, with zeros for what only other ranks have. What no rank used stays without a gradient."""
    for parameter, count in zip(trainable, used, strict=False):
        found = sums.pop(parameter, None)
        if found is None and count > 0:
            like = widen(parameter.detach())
            sparse = any(parameter is weight for weight in engine.sparse)
            found = torch.zeros_like(like, layout=torch.sparse_coo if sparse else torch.strided)
        if found is not None:
            sums[parameter] = found


def _all_reduce_sums(sums: Gradients, group: dist.ProcessGroup) -> None:
    """Sum over the ranks, one tensor for each device and dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Parameter]] = {}
    for parameter, gradient in sums.items():
        if gradient.is_sparse:
            sums[parameter] = _all_reduce_sparse(gradient, group)
        else:
            kinds.setdefault((gradient.device, gradient.dtype), []).append(parameter)
    for alike in kinds.values():
        flat = torch.cat([sums[parameter].flatten() for parameter in alike])
        dist.all_reduce(flat, group=group)
        for parameter, part in zip(alike, torch.split(flat, [p.numel() for p in alike]), strict=True):
            sums[parameter] = torch.empty_like(parameter, dtype=part.dtype).copy_(part.view(parameter.shape))


def _all_reduce_sparse(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    gradient = gradient.coalesce()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are announced as a beta feature of PyTorch
        dist.all_reduce(gradient, group=group)
    return gradient
