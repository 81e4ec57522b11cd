"""The strategies by name. A new way for gradients to meet is a new file, and a row here."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from lockstep.comm.group import Meeting
from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.sync.ddp import DataParallel
from lockstep.sync.exact import Exact
from lockstep.sync.protocol import Sync
from lockstep.sync.single import Single


def promises_bits(strategy: str, *, shards_given: bool) -> bool:
    """Whether a run with this strategy (definite, or ``auto``) promises its answer to the bit at every world size."""
    return strategy == "exact" or (strategy == "auto" and shards_given)


def resolve_strategy(name: str, world_size: int, *, is_exact: bool) -> str:
    """``auto`` made definite, and checked against the number of processes.

    Args:
        name: as asked for.
        world_size: number of processes.
        is_exact: whether the run was born with a number of shards of its own choice, so that its answer is promised to
            the bit.

    Raises:
        ConfigError: ``single`` for several processes: each would train a model of its own.
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
    return name


_TABLE: dict[str, Callable[[RunConfig, int, Meeting], Sync]] = {
    "single": lambda config, shards, meeting: Single(shards, config.accumulate),
    "ddp": lambda config, shards, meeting: DataParallel(shards, meeting, find_unused=config.find_unused_parameters),
    "exact": lambda config, shards, meeting: Exact(
        dist.get_rank(),
        dist.get_world_size(),
        shards,
        between_hosts=meeting.interface != "lo",
        cards=torch.device("cuda", torch.cuda.current_device()) if meeting.backend == "nccl" else None,
    ),
}


def make_sync(strategy: str, config: RunConfig, num_shards: int, meeting: Meeting) -> Sync:
    """The way for gradients to meet that a (definite) strategy names."""
    return _TABLE[strategy](config, num_shards, meeting)
