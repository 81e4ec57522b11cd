"""Creating strategies by name. A new strategy is a new file, and a row in ``config.STRATEGIES``."""

from __future__ import annotations

import importlib

import torch

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._base.errors import ConfigError
from lockstep._sync.dp import check_dp
from lockstep._sync.protocol import Strategy
from lockstep._world.comm.group import Transport
from lockstep._world.comm.horovod import find_horovod


def resolve_strategy(name: str, world_size: int, num_shards: int, *, is_exact: bool, on_gpus: bool) -> str:
    """Resolves ``auto``, and checks the strategy against the number of processes and the kind of
    device.

    Args:
        name: the requested strategy.
        world_size: number of processes.
        num_shards: V of the run.
        is_exact: whether the run was created with a strategy that promises bit-identical answers.
        on_gpus: whether this process uses GPUs.

    Raises:
        ConfigError: ``single`` or ``dp`` with several processes; ``dp`` on the CPU; ``horovod``
            where Horovod is not installed.
    """
    if name == "auto" and is_exact:
        return "single" if num_shards == 1 else "exact"
    if name == "auto":  # a run that was created with another strategy, such as ddp
        return "single" if world_size == 1 else "ddp"
    if name == "single" and world_size > 1:
        raise ConfigError(
            f"strategy='single' is for one process, but there are {world_size}, which would each train a separate model. "
            "Start one process, or use another strategy.",
            code="single-several-processes",
        )
    if name == "dp":
        check_dp(world_size, on_gpus=on_gpus)
    if name == "horovod":
        find_horovod()
    return name


def make_strategy(
    strategy: str, config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]
) -> Strategy:
    """Creates a strategy other than ``auto``. ``devices``: of this process."""
    made: Strategy = importlib.import_module(STRATEGIES[strategy].module).make(config, num_shards, transport, devices)
    return made
