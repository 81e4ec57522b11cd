"""The strategies by name. A new way for gradients to meet is a new file, and a row in ``config.STRATEGIES``."""

from __future__ import annotations

import importlib

import torch

from lockstep.comm.group import Transport
from lockstep.comm.horovod import find_horovod
from lockstep.config import STRATEGIES, RunConfig
from lockstep.errors import ConfigError
from lockstep.sync.dp import check_dp
from lockstep.sync.protocol import Sync


def promises_bits(strategy: str, *, shards_given: bool) -> bool:
    """Whether a run with this strategy (definite, or ``auto``) promises its answer to the bit at every world size."""
    return strategy == "exact" or (strategy == "auto" and shards_given)


def resolve_strategy(name: str, world_size: int, *, is_exact: bool, on_gpus: bool) -> str:
    """``auto`` made definite, and checked against the number of processes and the kind of device.

    Args:
        name: as asked for.
        world_size: number of processes.
        is_exact: whether the run was born with a number of shards of its own choice, so that its answer is promised to
            the bit.
        on_gpus: whether this process trains on CUDA GPUs.

    Raises:
        ConfigError: ``single`` or ``dp`` for several processes: each would train a model of its own; ``dp`` on the CPU;
            ``horovod`` where Horovod is not installed.
    """
    if name == "auto" and is_exact:
        return "exact"
    if name == "auto":
        return "single" if world_size == 1 else "ddp"
    if name == "single" and world_size > 1:
        raise ConfigError(
            f"strategy='single' is for one process, and there are {world_size}: each would train a model of its own. "
            "Start one process, or use another strategy."
        )
    if name == "dp":
        check_dp(world_size, on_gpus=on_gpus)
    if name == "horovod":
        find_horovod()
    return name


def make_sync(
    strategy: str, config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]
) -> Sync:
    """The way for gradients to meet that a (definite) strategy names. ``devices``: those of this process."""
    made: Sync = importlib.import_module(STRATEGIES[strategy].sync).make(config, num_shards, transport, devices)
    return made
