"""PyTorch's ``fully_shard``: each rank holds a part of the parameters, gradients and optimizer state.

A block's parameters are all-gathered for its forward and backward pass, and its gradients are reduce-scattered. So all
ranks must run the model equally often: each has the same number of shards, and none of them may be empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from typing_extensions import override

from lockstep.base.config import RunConfig
from lockstep.base.errors import ConfigError, DataError, LossError, ModelError
from lockstep.plan.shards import MicroStep, StepPlan
from lockstep.sync.gradients import is_narrow
from lockstep.sync.protocol import Sync
from lockstep.sync.sharded import ShardedSync
from lockstep.sync.start import take_from_rank_0
from lockstep.sync.timed_comms import TimedAllGather, TimedReduceScatter, Waited
from lockstep.world.comm.group import Transport, default_group


class FSDPSync(ShardedSync):
    """The strategy ``fsdp``.

    Args:
        num_shards: V of the run.
        devices: those of this process; the first is used.

    Raises:
        ConfigError: some ranks would have more shards than others.
    """

    forward_is_collective = True

    def __init__(self, num_shards: int, devices: Sequence[torch.device]) -> None:
        super().__init__(num_shards, dist.get_world_size())
        if num_shards % self._world_size:
            raise ConfigError(
                f"strategy='fsdp' with {num_shards} shards on {self._world_size} processes: every process must have equally "
                "many, since the parameters are spread over all of them and they must run the model equally often. Use a "
                f"number of processes that divides {num_shards}, or another strategy."
            )
        self._device = devices[0]
        self.times_forward = self._device.type == "cpu"
        self._waited = Waited()
        self._mesh: DeviceMesh | None = None

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        """The parameters of ``model`` are replaced by DTensors: see ``replaced``."""
        _check(model)
        take_from_rank_0(model)
        before = dict(model.named_parameters())
        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(default_group(), self._device.type)
        for part in (*_blocks(model), model) if before else ():
            _shard(part, self._mesh, self._waited if self.times_forward else None)
        model.to(self._device)  # its buffers
        model.register_forward_hook(_reshard)
        self.replaced.update({old: model.get_parameter(name) for name, old in before.items()})
        return super().attach(model)

    @override
    def begin_phase(self, plan: StepPlan, phase: int) -> None:
        """Raises:
        DataError: a global batch has too few samples for all shards.
        """
        if min(plan.sizes) < self._num_shards:
            raise DataError(
                f"step {plan.number}: a global batch of {min(plan.sizes)} samples leaves some of the {self._num_shards} "
                "shards empty, and with strategy='fsdp' every process must run the model equally often. Use DataLoader(..., "
                "drop_last=True), a larger batch_size, or another strategy."
            )
        super().begin_phase(plan, phase)

    @override
    def begin_shard(self, micro: MicroStep) -> None:
        super().begin_shard(micro)
        self._waited.take()  # an evaluation may have come before

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        self.waited_in_forward_s = self._waited.take()
        # The backward pass sums over the ranks, so the weight must already be in the loss.
        if factor == 0 and not math.isfinite(loss.item()):
            raise LossError(
                f"a shard of weight 0 has the loss {loss.item()}, which strategy='fsdp' cannot leave out of the sum over the "
                "processes: make it finite (for example, divide by max(1, number of tokens))"
            )
        super().backward(loss if factor == 1.0 else loss * factor, call, 1.0, options)
        self.waited_s = self._waited.take()

    @override
    def close(self) -> None:
        self._mesh = None


def _check(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ModelError(
                f"parameter {name!r} is a scalar, which cannot be sharded over processes (strategy='fsdp'): give it the "
                "shape (1,), or use another strategy"
            )


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The modules to shard as units: the elements of ModuleLists and Sequentials, innermost first.

    A module that shares a parameter with another part of the model is left to the unit of the whole model.
    """
    occurrences = Counter(parameter for module in model.modules() for parameter in module._parameters.values())
    for module in reversed(list(model.modules())):
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        for block in module:
            counts = Counter(parameter for part in block.modules() for parameter in part._parameters.values())
            counts.pop(None, None)
            if counts and block is not model and all(occurrences[parameter] == count for parameter, count in counts.items()):
                yield block


def _reshard(model: nn.Module, *_: object) -> None:
    """Reshard after a forward pass without gradients: only a backward pass would do so otherwise."""
    if not torch.is_grad_enabled() and isinstance(model, FSDPModule):
        model.reshard()


def _shard(module: nn.Module, mesh: DeviceMesh, waited: Waited | None) -> None:
    if isinstance(module, FSDPModule):
        return
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if any(map(is_narrow, module.parameters())) else None)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    assert isinstance(module, FSDPModule)
    module.set_gradient_divide_factor(1.0)  # a sum: the weights are in the losses
    module.set_force_sum_reduction_for_comms(True)
    if waited is not None:
        module.set_custom_all_gather(TimedAllGather(waited))  # type: ignore[arg-type]  # whose base class is private
        module.set_custom_reduce_scatter(TimedReduceScatter(waited))  # type: ignore[arg-type]


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Sync:
    """See ``config.Strategy``."""
    if config.precision == "16-master":
        raise ConfigError(
            "precision='16-master' with strategy='fsdp': the float16 copies would be made of each process's part of the "
            "weights. Use 16-mixed or bf16-mixed, which have float32 weights too."
        )
    return FSDPSync(num_shards, devices)
