"""The checks of ``prepare``, made before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, amp, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep._base.errors import ModelError, UsageError
from lockstep._data.loader import PreparedLoader
from lockstep._data.states import has_state, is_generator
from lockstep._prepare.state_adapters import parameters_of
from lockstep._world.comm.dtensors import is_dtensor


def is_loader(candidate: Any) -> bool:
    """Whether an object given to ``prepare`` is a training loader.

    Raises:
        UsageError: it cannot be prepared.
    """
    if isinstance(candidate, (nn.Module, Optimizer, LRScheduler, amp.GradScaler)):
        return False
    if isinstance(candidate, (PreparedLoader, str, bytes, Tensor)) or not hasattr(candidate, "__iter__"):
        kind = type(candidate).__name__
        raise UsageError(
            f"a {kind} cannot be prepared: give models, optimizers, schedules, AveragedModels, GradScalers, DataLoaders, or "
            f"iterables of ready batches{_how_to_keep(candidate, kind)}"
        )
    return True


def preparing_order(item: Any) -> int:
    """A sort key. Models come first: optimizers need their parameters on the device, and schedules
    wrap optimizers."""
    for order, kind in enumerate((nn.Module, Optimizer, LRScheduler)):
        if isinstance(item, kind):
            return order
    return 3


def describe(objects: Sequence[Any], loaders: dict[int, PreparedLoader], devices: Sequence[torch.device] = ()) -> list[str]:
    """Lines that must be equal on all ranks. ``devices``: those on which parts of models may be."""
    numbers = {device: f", on device {number}" for number, device in enumerate(dict.fromkeys(devices))}
    lines = []
    for number, item in enumerate(objects, 1):
        label = f"object {number}, {type(item).__name__}"
        if isinstance(item, nn.Module):
            lines += [
                f"{label}: {name} of shape {tuple(tensor.shape)}, {tensor.dtype}, requires_grad={tensor.requires_grad}"
                + numbers.get(tensor.device, "")
                for name, tensor in [*item.named_parameters(), *item.named_buffers()]
            ]
        elif isinstance(item, Optimizer):
            sizes = [len(group["params"]) for group in item.param_groups]
            lines.append(f"{label}: parameter groups of {sizes} tensors")
        elif id(item) in loaders:
            lines += [f"{label}: {line}" for line in loaders[id(item)].describe()]
        else:
            lines.append(label)
    return lines


def _how_to_keep(candidate: Any, kind: str) -> str:
    line = f'team.register("{kind.lower()}", ...)'
    if has_state(candidate):
        return (
            f". To save and restore its state_dict(), as of a schedule of your own, write {line}; prepare the optimizer that "
            "it steps, if there is one"
        )
    if is_generator(candidate) or isinstance(candidate, Tensor):
        return f". To save and restore it, write {line}"
    if callable(getattr(candidate, "step", None)):
        return f". To save and restore what its step() changes, give it state_dict() and load_state_dict(), and write {line}"
    return ""


def check_model(model: nn.Module, *, num_shards: int, world_size: int, on_cpu: bool, is_exact: bool) -> None:
    """Check that a model can be trained in shards.

    Args:
        num_shards: V.
        on_cpu: whether it is trained on the CPU.
        is_exact: whether bit-identical answers at every world size are promised.

    Raises:
        ModelError: it has no parameters and no buffers, is already wrapped or sharded, or computes
            statistics over processes.
    """
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        raise ModelError(f"the model is already in a {type(model).__name__}: prepare the plain model instead")
    if not any(True for _ in (*model.parameters(), *model.buffers())):
        raise ModelError(
            f"{type(model).__name__} has no parameters and no buffers, so there is nothing to train or keep equal: use it "
            "as it is, and leave it out of prepare()"
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"parameter {name!r} of {type(model).__name__} has no shape yet, since a lazy layer takes it from its first "
                "input: run the model once before team.prepare(), and before making its optimizer, on inputs of the right "
                "shape: `model(torch.zeros(1, num_features))`"
            )
        if is_dtensor(parameter):
            raise ModelError(
                f"parameter {name!r} of {type(model).__name__} is sharded over processes already (fully_shard?): prepare the "
                "plain model instead, and use strategy='fsdp'"
            )
    for name, module in model.named_modules():
        if not isinstance(module, nn.SyncBatchNorm) or (world_size == 1 == num_shards and not is_exact):
            continue
        if is_exact:
            raise ModelError(
                f"layer {name!r} is SyncBatchNorm, which takes its statistics over the processes: with strategy 'exact', the "
                "default, the answer must not depend on how many there are, so every shard has its own statistics. Use "
                "BatchNorm (over a shard's samples) or GroupNorm, or strategy='ddp' on GPUs with a process for each shard.",
                code="sync-batchnorm-exact",
            )
        if on_cpu:
            raise ModelError(
                f"layer {name!r} is SyncBatchNorm, which works on GPUs only: use BatchNorm on the CPU",
                code="sync-batchnorm-on-cpu",
            )
        if num_shards != world_size:
            raise ModelError(
                f"layer {name!r} is SyncBatchNorm, which takes its statistics over processes: with {num_shards} shards on "
                f"{world_size} processes they would depend on how many there are. Use BatchNorm, or as many processes as "
                "shards.",
                code="sync-batchnorm-uneven",
            )


def check_placed(model: nn.Module, devices: Sequence[torch.device]) -> None:
    """Check that all parts of a model that the script has placed are on devices of this process.

    Raises:
        ModelError: a parameter or buffer is not.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device not in devices:
            raise ModelError(
                f"{name!r} of {type(model).__name__} is on {tensor.device}, but this process has "
                f"{', '.join(map(str, devices))}. With devices_per_process={len(devices)} models stay where "
                "the script puts them. Put each part on one of team.devices before prepare(): layer.to(team.devices[1]), or "
                "model.to(team.device) for all of a small one."
            )


def check_optimizers(objects: Sequence[Any], prepared: set[nn.Parameter]) -> None:
    """Check that optimizers train prepared models, or models among ``objects``.

    Raises:
        ModelError: an optimizer has a parameter of no such model.
    """
    models = [item for item in objects if isinstance(item, nn.Module) and not isinstance(item, AveragedModel)]
    trained = prepared.union(*(model.parameters() for model in models))
    for item in objects:
        if not isinstance(item, Optimizer):
            continue
        unprepared = sum(parameter not in trained for parameter in parameters_of(item))
        if unprepared:
            raise ModelError(
                f"{unprepared} of the parameters of {type(item).__name__} belong to no prepared model, so nothing would "
                "keep them equal on all ranks: create the optimizer from the parameters of the model that you prepare, and "
                "prepare the model first or in the same call"
            )
