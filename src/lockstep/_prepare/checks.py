"""The checks of ``prepare``, made before anything is changed.

After an error the script's objects are unchanged, so that a notebook can correct the call
and repeat it.
"""

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
    """Returns whether an object passed to ``prepare`` is a training loader.

    Raises:
        UsageError: the object cannot be prepared.
    """
    if isinstance(candidate, (nn.Module, Optimizer, LRScheduler, amp.GradScaler)):
        return False
    if isinstance(candidate, (PreparedLoader, str, bytes, Tensor)) or not hasattr(candidate, "__iter__"):
        kind = type(candidate).__name__
        raise UsageError(
            f"a {kind} cannot be prepared. Pass models, optimizers, schedules, AveragedModels, GradScalers, DataLoaders, or "
            f"iterables of ready batches{_how_to_keep(candidate, kind)}",
            code="cannot-prepare",
        )
    return True


def preparing_order(item: Any) -> int:
    """Returns a sort key. Models are first, since optimizers need parameters on the device.
    Schedules follow the optimizers that they wrap."""
    for order, kind in enumerate((nn.Module, Optimizer, LRScheduler)):
        if isinstance(item, kind):
            return order
    return 3


def describe(objects: Sequence[Any], loaders: dict[int, PreparedLoader], devices: Sequence[torch.device] = ()) -> list[str]:
    """Returns lines that must be equal on all ranks. ``devices``: the devices with parts of
    models."""
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
        return f". To save and restore its state_dict(), write {line}. If it steps an optimizer, prepare that"
    if is_generator(candidate) or isinstance(candidate, Tensor):
        return f". To save and restore it, write {line}"
    if callable(getattr(candidate, "step", None)):
        return f". To save and restore what its step() changes, give it state_dict() and load_state_dict(), and write {line}"
    return ""


def check_model(model: nn.Module, *, num_shards: int, world_size: int, on_cpu: bool, is_exact: bool) -> None:
    """Checks that a model can be trained in shards.

    Args:
        num_shards: V.
        on_cpu: whether the model is trained on the CPU.
        is_exact: whether bit-identical results at every world size are promised.

    Raises:
        ModelError: the model has no parameters and no buffers, is already wrapped or sharded, or
            computes statistics over processes.
    """
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        raise ModelError(
            f"the model is already in a {type(model).__name__}. Prepare the plain model instead.", code="model-wrapped"
        )
    if not any(True for _ in (*model.parameters(), *model.buffers())):
        raise ModelError(
            f"{type(model).__name__} has no parameters and no buffers, so there is nothing to train. Use it without prepare().",
            code="model-empty",
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"parameter {name!r} of {type(model).__name__} has no shape yet: it belongs to a lazy layer. To give it one, "
                "run the model once before team.prepare() and the optimizer: `model(torch.zeros(1, num_features))`.",
                code="model-lazy",
            )
        if is_dtensor(parameter):
            raise ModelError(
                f"parameter {name!r} of {type(model).__name__} is already cut over processes (fully_shard?). Prepare the plain "
                "model instead, with strategy='fsdp'.",
                code="model-already-sharded",
            )
    for name, module in model.named_modules():
        if not isinstance(module, nn.SyncBatchNorm) or (world_size == 1 == num_shards and not is_exact):
            continue
        if is_exact:
            raise ModelError(
                f"layer {name!r} is SyncBatchNorm, which takes its statistics over the processes. With strategy 'exact', the "
                "default, results must not depend on their number. Use BatchNorm (over a shard's samples) or GroupNorm, or "
                "strategy='ddp' on GPUs with one process per shard.",
                code="sync-batchnorm-exact",
            )
        if on_cpu:
            raise ModelError(
                f"layer {name!r} is SyncBatchNorm, which works on GPUs only: use BatchNorm on the CPU",
                code="sync-batchnorm-on-cpu",
            )
        if num_shards != world_size:
            raise ModelError(
                f"layer {name!r} is SyncBatchNorm, whose statistics would depend on the number of processes ({num_shards} "
                f"shards on {world_size} processes). Use BatchNorm, or {num_shards} processes.",
                code="sync-batchnorm-uneven",
            )


def check_placed(model: nn.Module, devices: Sequence[torch.device]) -> None:
    """Checks that all parts of a model that the script has placed are on devices of this process.

    Raises:
        ModelError: a parameter or buffer is on another device.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device not in devices:
            raise ModelError(
                f"{name!r} of {type(model).__name__} is on {tensor.device}, but this process has "
                f"{', '.join(map(str, devices))}. With devices_per_process={len(devices)} the script places models. Put each "
                "part on one of team.devices before prepare(): layer.to(team.devices[1]), or model.to(team.device).",
                code="model-on-other-device",
            )


def check_optimizers(objects: Sequence[Any], prepared: set[nn.Parameter]) -> None:
    """Checks that optimizers train prepared models, or models among ``objects``.

    Raises:
        ModelError: a parameter of an optimizer belongs to no such model.
    """
    models = [item for item in objects if isinstance(item, nn.Module) and not isinstance(item, AveragedModel)]
    trained = prepared.union(*(model.parameters() for model in models))
    for item in objects:
        if not isinstance(item, Optimizer):
            continue
        unprepared = sum(parameter not in trained for parameter in parameters_of(item))
        if unprepared:
            raise ModelError(
                f"{unprepared} parameters of {type(item).__name__} belong to no prepared model, so they would differ between "
                "ranks. Create the optimizer from the parameters of a model that you prepare first or in the same call.",
                code="optimizer-of-other-model",
            )
