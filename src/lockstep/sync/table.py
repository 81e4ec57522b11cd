"""The strategies by name. A new way for gradients to meet is a new file, and a row here."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from lockstep.comm.group import Meeting
from lockstep.comm.horovod import find_horovod
from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.sync.ddp import DDPSync
from lockstep.sync.dp import DataParallelSync, check_dp
from lockstep.sync.exact import ExactSync
from lockstep.sync.horovod import HorovodSync
from lockstep.sync.protocol import Sync
from lockstep.sync.single import SingleSync


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


_Devices = tuple[torch.device, ...]


def _fully_sharded(config: RunConfig, shards: int, meeting: Meeting, devices: _Devices) -> Sync:
    if config.trace != "off":
        raise ConfigError(
            f"trace={config.trace!r} with strategy='fsdp': a trace compares whole tensors, and here every process has a part "
            "of each. Trace the run with strategy='ddp' or 'exact', which has the same answer up to rounding."
        )
    if config.precision == "16-master":
        raise ConfigError(
            "precision='16-master' with strategy='fsdp': the float16 copy of the weights would be made of each process's part "
            "of them. Use 16-mixed or bf16-mixed, which have float32 weights too."
        )
    # Imported where it is wanted: what it needs of PyTorch takes two seconds.
    from lockstep.sync.fsdp import FSDPSync

    return FSDPSync(shards, devices)


_TABLE: dict[str, Callable[[RunConfig, int, Meeting, _Devices], Sync]] = {
    "single": lambda config, shards, meeting, devices: SingleSync(shards, config.accumulate),
    "dp": lambda config, shards, meeting, devices: DataParallelSync(shards, config.accumulate, devices, config.batch_dim),
    "ddp": lambda config, shards, meeting, devices: DDPSync(shards, find_unused=config.find_unused_parameters),
    "fsdp": _fully_sharded,
    "horovod": lambda config, shards, meeting, devices: HorovodSync(shards, config.timeout_s),
    "exact": lambda config, shards, meeting, devices: ExactSync(
        dist.get_rank(),
        dist.get_world_size(),
        shards,
        between_hosts=meeting.interface != "lo",
        gpus=devices if meeting.backend == "nccl" else (),
    ),
}


def make_sync(strategy: str, config: RunConfig, num_shards: int, meeting: Meeting, devices: _Devices) -> Sync:
    """The way for gradients to meet that a (definite) strategy names. ``devices``: those of this process."""
    return _TABLE[strategy](config, num_shards, meeting, devices)
