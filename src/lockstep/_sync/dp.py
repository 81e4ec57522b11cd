"""PyTorch's DataParallel: one process splits every shard over its GPUs and gathers the results.

The model is copied to the other GPUs in every forward pass, and a thread runs each copy; the
backward pass sums the copies' gradients. A shard's gradient equals that of one GPU up to rounding,
as long as a sample's result does not depend on the other samples. BatchNorm takes its statistics
over each GPU's part and keeps the statistics of the first GPU, and dropout draws on each GPU: with
these, results also depend on the number of GPUs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError, ModelError
from lockstep._sync.buffers import BATCH_NORMS
from lockstep._sync.protocol import Strategy
from lockstep._sync.single import SingleStrategy
from lockstep._world.comm.group import Transport


def check_dp(world_size: int, *, on_gpus: bool) -> None:
    """Checks that the strategy ``dp`` can be used.

    Raises:
        ConfigError: there are several processes, or no GPUs.
    """
    if world_size > 1:
        raise ConfigError(
            f"strategy='dp' drives all GPUs from one process, but there are {world_size}, which would each train a separate "
            "model. Start one (--nproc-per-node 1), or use strategy='ddp', with a process for each GPU.",
            code="dp-several-processes",
        )
    if not on_gpus:
        raise ConfigError(
            "strategy='dp' (torch.nn.DataParallel) splits a batch over CUDA GPUs, but this process is on the CPU. Use "
            "strategy='single', or several processes with strategy='ddp' (lockstep run --nproc-per-node 2).",
            code="dp-without-gpus",
        )


class DataParallelStrategy(SingleStrategy):
    """The strategy ``dp``.

    Args:
        num_shards: V of the run.
        accumulate: global batches of a step.
        devices: the GPUs, each once. Models, inputs and results are on the first.
        batch_dim: the dimension along which inputs and results are split.
    """

    def __init__(self, num_shards: int, accumulate: int, devices: Sequence[torch.device], batch_dim: int = 0) -> None:
        super().__init__(num_shards, accumulate)
        self._devices = devices
        self._batch_dim = batch_dim

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        if len(self._devices) > 1:
            _check_copies(model, len(self._devices))
        super().attach(model)
        copied = _Copied(model, self._devices[0].type)
        parallel = nn.DataParallel(copied, device_ids=list(self._devices), dim=self._batch_dim)

        def forward(*args: Any, **kwargs: Any) -> Any:
            copied.note_autocast()
            return parallel(*args, **kwargs)

        return forward


class _Copied(nn.Module):
    """The module that is copied to the GPUs: the model, under the autocast settings of the calling
    thread.

    DataParallel's threads inherit whether autocast is enabled, but not its dtype, which is
    thread-local: it would be float16 in them even where bfloat16 is set.
    """

    def __init__(self, model: nn.Module, device_type: str) -> None:
        super().__init__()
        self.model = model
        self._device_type = device_type
        self.note_autocast()

    def note_autocast(self) -> None:
        """Records this thread's autocast settings. (Copies of a module have its attributes.)"""
        self._enabled = torch.is_autocast_enabled(self._device_type)
        self._dtype = torch.get_autocast_dtype(self._device_type)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._device_type, dtype=self._dtype, enabled=self._enabled):
            return self.model(*args, **kwargs)


def _check_copies(model: nn.Module, num_gpus: int) -> None:
    """Checks for layers that behave differently in per-GPU copies of a model; warn of BatchNorm.

    Raises:
        ModelError: the model is compiled.
    """
    kind = type(model).__name__
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod"):
            where = f"layer {name!r} of {kind}" if name else kind
            raise ModelError(
                f"{where} is compiled, but strategy='dp' copies models to {num_gpus} GPUs, where compiled code would use the "
                "weights on the first. Use strategy='ddp' with a process for each GPU, leave torch.compile out, or use one "
                "GPU (--devices-per-process 1).",
                code="dp-compiled-model",
            )
    norms = [name for name, module in model.named_modules() if isinstance(module, BATCH_NORMS)]
    if norms:
        warnings.warn(
            f"lockstep: with strategy='dp' on {num_gpus} GPUs BatchNorm (for example {norms[0]!r} of {kind}) normalizes over "
            "each GPU's part of a shard and keeps the statistics of the first GPU, so results depend on the number of GPUs. "
            f"strategy='ddp' with shards={num_gpus} combines all statistics.",
            RuntimeWarning,
            stacklevel=2,
        )


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Strategy:
    """Creates the strategy for ``sync.table.make_strategy``."""
    return DataParallelStrategy(num_shards, config.accumulate, devices, config.batch_dim)
