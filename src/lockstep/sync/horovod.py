"""Horovod's all-reduce: each gradient is sent as soon as the backward pass has it, under the name of its parameter.

Horovod itself finds out which gradients all ranks have sent, and adds several up together, in whatever order they come. A
gradient that some ranks have and others do not would be waited for without end. So when the phase ends the ranks tell each
other which parameters were used, and those that a rank did not use are sent as zeros, by a rank without samples too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from lockstep.comm.group import Transport
from lockstep.comm.horovod import start_horovod
from lockstep.config import RunConfig
from lockstep.errors import ModelError, PeerError
from lockstep.plan.shards import StepPlan
from lockstep.sync.afterwards import add_absent, sparse_weights
from lockstep.sync.gradients import Gradients, add_weighted
from lockstep.sync.protocol import Sync
from lockstep.sync.sharded import ShardedSync
from lockstep.sync.start import take_from_rank_0

_POLL_S = 0.0002  # Horovod itself looks for new operations every millisecond


class HorovodSync(ShardedSync):
    """The strategy ``horovod``. Every rank must make one: it starts Horovod where the launcher has not.

    Args:
        num_shards: V of the run.
        timeout_s: how long a rank is waited for.

    Raises:
        ConfigError: Horovod is missing, or cannot be started here.
    """

    def __init__(self, num_shards: int, timeout_s: float) -> None:
        super().__init__(num_shards, dist.get_world_size())
        self._horovod = start_horovod(timeout_s)
        self._timeout_s = timeout_s
        self._names: dict[Parameter, str] = {}
        self._wires: dict[Parameter, str] = {}
        """What the gradients are called among the ranks: also two models' parameters of one name have two."""
        self._sparse: list[Parameter] = []
        self._hooks: list[RemovableHandle] = []
        self._listening = False
        """Whether gradients leave as they come."""
        self._factor = 1.0
        self._earlier: Gradients = {}
        self._call = 0
        self._sent: dict[int, dict[Parameter, Callable[[], Tensor]]] = {}
        """By backward call, what waits for the sum of each gradient that has left."""

    def close(self) -> None:
        """See Sync. Horovod goes on until the process ends: it cannot be left by one rank alone."""
        super().close()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        take_from_rank_0(model)
        self._sparse += sparse_weights(model)
        for name, parameter in model.named_parameters():
            if parameter in self._names or not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            self._wires[parameter] = f"lockstep.{len(self._names)}.{name}"
            self._names[parameter] = name
            learns = parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen one takes no hook, but keeps it
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._arrived))  # type: ignore[no-untyped-call]
            parameter.requires_grad_(learns)
        return model

    def begin_phase(self, plan: StepPlan, phase: int) -> None:
        """See Sync."""
        super().begin_phase(plan, phase)
        self._sent = {}

    def backward(self, loss: Tensor, call: int, factor: float, options: dict[str, Any]) -> None:
        """See Sync."""
        assert self._micro is not None
        if not self._micro.is_last or self._world_size == 1:
            super().backward(loss, call, factor, options)
            return
        self._call, self._factor, self._earlier = call, factor, self._sums.take(call)
        self._listening = True
        try:
            with self._buffers.held():
                loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self._listening = False
        # What has not left stays with the sum of its call.
        add_weighted(list(self._names), self._earlier, factor)
        self._sums.put(call, self._earlier)
        self._earlier = {}

    def _arrived(self, parameter: Parameter) -> None:
        """A gradient is there. (Called by autograd, in the backward pass.)"""
        if not self._listening:
            return
        if parameter in self._sent.get(self._call, {}):
            raise ModelError(
                f"the gradient of {self._names[parameter]!r} came in several parts in one backward pass, after it had been "
                "sent: checkpoint(..., use_reentrant=True) over parameters that are used elsewhere too does that. Use "
                "use_reentrant=False."
            )
        sums: Gradients = {parameter: self._earlier.pop(parameter)} if parameter in self._earlier else {}
        add_weighted([parameter], sums, self._factor)
        if sums:  # without weight the shard is absent, and there may be nothing to send
            self._send(self._call, parameter, sums[parameter])

    def _reduce(self, call: int) -> Gradients:
        """What has not left during the backward pass, as far as some rank has a gradient; then all sums."""
        sums = self._sums.take(call)
        if self._world_size == 1:
            return sums
        trainable = [p for p in self._names if p.requires_grad]  # as it is now: scripts freeze and thaw
        waiting = self._sent.pop(call, {})
        rest = [p for p in trainable if p not in waiting]
        used = torch.tensor([float(p in waiting or p in sums) for p in trainable])
        self._wait(self._horovod.allreduce_async_(used, name="lockstep.used", op=self._horovod.Sum))
        counts = dict(zip(trainable, used.tolist(), strict=True))
        add_absent(rest, sums, [counts[parameter] for parameter in rest], self._sparse)
        for parameter, part in sums.items():
            self._send(call, parameter, part)
        waiting.update(self._sent.pop(call, {}))
        return {parameter: wait() for parameter, wait in waiting.items()}

    def _send(self, call: int, parameter: Parameter, part: Tensor) -> None:
        """Have Horovod sum this rank's part of a gradient with those of the others. It is changed in place."""
        name, horovod, sent = f"{self._wires[parameter]}.{call}", self._horovod, self._sent.setdefault(call, {})
        if part.is_sparse:
            finish = horovod.sparse_allreduce_async(part.coalesce(), name, op=horovod.Sum)
            sent[parameter] = lambda: self._checked(finish).coalesce()
            return
        # Horovod takes real numbers in the usual order of memory, and only where it was built for GPUs those on one.
        plain = torch.view_as_real(part) if part.is_complex() else part
        wire = plain.contiguous() if plain.device.type == "cpu" or horovod.nccl_built() else plain.contiguous().cpu()
        handle = horovod.allreduce_async_(wire, name=name, op=horovod.Sum)

        def wait() -> Tensor:
            self._wait(handle)
            if wire is not plain:
                plain.copy_(wire)
            return part

        sent[parameter] = wait

    def _wait(self, handle: Any) -> None:
        """Wait for an operation. (Horovod's own way spins, which costs the others a core, and knows no end.)"""
        deadline = time.monotonic() + self._timeout_s
        while not self._horovod.poll(handle):
            if time.monotonic() > deadline:
                raise self._failure(f"after {self._timeout_s:g} s some rank has still not come. ")
            time.sleep(_POLL_S)
        self._checked(lambda: self._horovod.synchronize(handle))

    def _checked(self, finish: Callable[[], Any]) -> Any:
        try:
            return finish()
        except self._horovod.HorovodInternalError as error:
            raise self._failure(f"{error} ") from error

    def _failure(self, why: str) -> PeerError:
        step = self._plan.number if self._plan else "?"
        return PeerError(
            f"the gradients of step {step} could not meet through Horovod: {why}If another rank has failed, look at its error "
            "first."
        )


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Sync:
    """See ``config.Strategy``."""
    return HorovodSync(num_shards, config.timeout_s)
