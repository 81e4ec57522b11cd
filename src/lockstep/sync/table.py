"""The strategies by name. A new way for gradients to meet is a new file, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.comm.group import Meeting
from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.sync.ddp import DataParallel
from lockstep.sync.protocol import Sync
from lockstep.sync.single import Single


def resolve_strategy(name: str, world_size: int) -> str:
    """``auto`` made definite, and checked against the number of processes.

    Raises:
        ConfigError: ``single`` for several processes: each would train a model of its own.
    """
    if name == "auto":
        return "single" if world_size == 1 else "ddp"
    if name == "single" and world_size > 1:
        raise ConfigError(
            f"strategy='single' is for one process, and there are {world_size}: each would train a model of its own. "
            "Start one process, or use strategy='ddp'."
        )
    return name


_TABLE: dict[str, Callable[[RunConfig, int, Meeting], Sync]] = {
    "single": lambda config, shards, meeting: Single(shards),
    "ddp": lambda config, shards, meeting: DataParallel(shards, meeting, find_unused=config.find_unused_parameters),
}


def make_sync(strategy: str, config: RunConfig, num_shards: int, meeting: Meeting) -> Sync:
    """The way for gradients to meet that a (definite) strategy names."""
    return _TABLE[strategy](config, num_shards, meeting)
