"""Horovod's all-reduce: each gradient is sent as soon as the backward pass has it, under the name
of its parameter.

Horovod itself determines which gradients all ranks have submitted, and fuses them in whatever order
they come. It would wait forever for a gradient that only some ranks have. So at the end of the
phase the ranks exchange which parameters were used, and a rank sends zeros for the other
parameters, also if it has no samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._base.errors import PeerError
from lockstep._plan.shards import StepPlan
from lockstep._sync.gradients import Gradients, add_weighted, came_in_pieces, has_gradient, on_gradient, usable
from lockstep._sync.protocol import PhaseSums, Strategy
from lockstep._sync.reduce_late import add_absent
from lockstep._sync.sharded import ShardedStrategy, ShardedSums
from lockstep._sync.start import broadcast_from_rank_0
from lockstep._world.comm.group import Transport
from lockstep._world.comm.horovod import start_horovod

_POLL_S = 0.0002  # Horovod's own cycle time is a millisecond


class HorovodStrategy(ShardedStrategy):
    """The strategy ``horovod``. Every rank must create one: it starts Horovod unless the launcher
    has.

    Args:
        num_shards: V of the run.
        timeout_s: how long to wait for other ranks, in seconds.

    Raises:
        ConfigError: Horovod is missing or cannot be started.
    """

    def __init__(self, num_shards: int, timeout_s: float) -> None:
        super().__init__(num_shards, dist.get_world_size())
        self.horovod = start_horovod(timeout_s)
        self.timeout_s = timeout_s
        self.names: dict[Parameter, str] = {}
        self.wires: dict[Parameter, str] = {}
        """The names of the gradients in messages, which are unique over models."""
        self._hooks: list[RemovableHandle] = []
        self.running: HorovodSums | None = None
        """The phase that runs a backward pass whose gradients are sent as they arrive."""

    @override
    def close(self) -> None:
        """Removes the hooks. Horovod runs until the process ends: a single rank cannot leave it."""
        super().close()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        broadcast_from_rank_0(model)
        for name, parameter in model.named_parameters():
            if parameter not in self.names and has_gradient(parameter):
                self.wires[parameter] = f"lockstep.{len(self.names)}.{name}"
                self.names[parameter] = name
                self._hooks.append(on_gradient(parameter, self._arrived))
        return model

    def _arrived(self, parameter: Parameter) -> None:
        if self.running is not None:
            self.running.arrived(parameter)

    @override
    def open(self, plan: StepPlan, phase: int) -> PhaseSums:
        return HorovodSums(self, plan)


class HorovodSums(ShardedSums):
    """The sums of a phase. In the last micro-batch, each is sent as soon as it is complete.

    Args:
        strategy: opens the phase.
        plan: of the step.
    """

    _strategy: HorovodStrategy

    def __init__(self, strategy: HorovodStrategy, plan: StepPlan) -> None:
        super().__init__(strategy, plan)
        self._horovod, self._names = strategy.horovod, strategy.names
        self._call = 0
        self._factor: float | Tensor = 1.0
        self._earlier: Gradients = {}
        """The sums of this process's earlier shards, for the running backward pass to add."""
        self._sent: dict[int, dict[Parameter, Callable[[], Tensor]]] = {}
        """The function that waits for the sum of each sent gradient, by backward call."""

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        assert self._micro is not None
        factor = usable(factor, self._parameters)
        # Only the last shard's gradients are sent, with the sums of the earlier shards added to
        # them.
        if not self._micro.is_last or self._strategy.world_size == 1:
            super().backward(loss, call, factor, options)
            return
        self._call, self._factor, self._earlier = call, factor, self._sums.pop(call, {})
        self._strategy.running = self
        try:
            with self._buffers.restored_after():
                loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self._strategy.running = None
        # Gradients that were not sent stay in the sum of their call.
        add_weighted(list(self._names), self._earlier, factor)
        self._sums[call] = self._earlier
        self._earlier = {}

    def arrived(self, parameter: Parameter) -> None:
        """Sends a new gradient. Called within the backward pass."""
        if parameter in self._sent.get(self._call, {}):
            raise came_in_pieces(self._names[parameter])
        sums: Gradients = {parameter: self._earlier.pop(parameter)} if parameter in self._earlier else {}
        add_weighted([parameter], sums, self._factor)
        if sums:  # empty if the shard has weight 0 and there are no earlier ones
            self._send(self._call, parameter, sums[parameter])

    def _reduce(self, call: int) -> Gradients:
        """Sends the gradients that were not sent during the backward pass, if any rank has one;
        then wait for all sums."""
        sums = self._sums.pop(call, {})
        if self._strategy.world_size == 1:
            return sums
        trainable = [p for p in self._names if p.requires_grad]  # scripts freeze and unfreeze
        waiting = self._sent.pop(call, {})
        unsent = [p for p in trainable if p not in waiting]
        used = torch.tensor([float(p in waiting or p in sums) for p in trainable])
        self._wait(self._horovod.allreduce_async_(used, name="lockstep.used", op=self._horovod.Sum))
        counts = dict(zip(trainable, used.tolist(), strict=True))
        add_absent(unsent, sums, [counts[parameter] for parameter in unsent])
        for parameter, own in sums.items():
            self._send(call, parameter, own)
        waiting.update(self._sent.pop(call, {}))
        return {parameter: wait() for parameter, wait in waiting.items()}

    def _send(self, call: int, parameter: Parameter, own: Tensor) -> None:
        """Starts summing a gradient over the ranks by Horovod.

        Args:
            call: index of the backward call.
            parameter: the parameter.
            own: the sum over this process's shards. It is changed in place.
        """
        name, horovod, sent = f"{self._strategy.wires[parameter]}.{call}", self._horovod, self._sent.setdefault(call, {})
        # Horovod takes contiguous real tensors, and tensors on a GPU only if it was built with
        # NCCL.
        plain = torch.view_as_real(own) if own.is_complex() else own
        wire = plain.contiguous() if plain.device.type == "cpu" or horovod.nccl_built() else plain.contiguous().cpu()
        handle = horovod.allreduce_async_(wire, name=name, op=horovod.Sum)

        def wait() -> Tensor:
            self._wait(handle)
            if wire is not plain:
                plain.copy_(wire)
            return own

        sent[parameter] = wait

    def _wait(self, handle: Any) -> None:
        """Waits for an operation. (Horovod's ``synchronize`` spins, which occupies a core, and has
        no timeout.)"""
        deadline = time.monotonic() + self._strategy.timeout_s
        while not self._horovod.poll(handle):
            if time.monotonic() > deadline:
                raise self._failure(f"a rank did not take part within {self._strategy.timeout_s:g} s.")
            time.sleep(_POLL_S)
        self._checked(lambda: self._horovod.synchronize(handle))

    def _checked(self, finish: Callable[[], Any]) -> Any:
        try:
            return finish()
        except self._horovod.HorovodInternalError as error:
            raise self._failure(str(error)) from error

    def _failure(self, why: str) -> PeerError:
        step, why = self._plan.number, why.rstrip(". ")
        return PeerError(
            f"Horovod could not reduce the gradients of step {step}: {why}. If another rank has failed, look at its error "
            "first.",
            code="horovod-failed",
        )


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Strategy:
    """Creates the strategy for ``sync.table.make_strategy``."""
    return HorovodStrategy(num_shards, config.timeout_s)
