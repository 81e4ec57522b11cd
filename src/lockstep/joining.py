"""``join()``: from the environment, the command line and the script to a team that has agreed on what it runs."""

from __future__ import annotations

import atexit
import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch

from lockstep.comm.agreement import compare_ranks
from lockstep.comm.collectives import Collectives
from lockstep.comm.group import choose_device, choose_meeting, close_group, default_group, open_group
from lockstep.config import RunConfig
from lockstep.errors import LockstepError, UsageError
from lockstep.measure.usage import num_cores
from lockstep.plan.shards import block
from lockstep.rundir import Birth, open_run_dir
from lockstep.sync.table import promises_bits, resolve_strategy
from lockstep.team import Team
from lockstep.world import World, read_environment

_joined: Team | None = None


def join(**settings: Any) -> Team:
    """Join the run that this process was started for: alone, or one of many. Call it once, first thing.

    Every rank must call it; it returns when all have. It opens the process group, chooses the device, sets the number of
    threads and the random streams, and opens the run's directory.

    Args:
        settings: fields of ``RunConfig``: ``strategy``, ``precision``, ``shards``, ``accumulate``, ``seed``, ``threads``,
            ``device``, ``backend``, ``timeout_s``, ``run_dir``, ``on_nan``, ``log_every``, ``find_unused_parameters``,
            ``progress``, ``workers``, ``trace``, ``trace_until``.

    Raises:
        ConfigError: a setting cannot be meant, or cannot be had here.
        UsageError: this process has joined before, or has opened a process group of its own.
        MismatchError: the ranks were started with different settings.
    """
    global _joined
    if _joined is not None and not _joined.is_closed:
        raise UsageError("join() was called before in this process: keep the team it returned, there is one a process")
    environment = read_environment()
    explicit = {**settings, **environment.settings}
    config = RunConfig.merge(environment.settings, settings)
    world = environment.world
    resolve_strategy(config.strategy, world.world_size, is_exact=False)  # what cannot be is said before anything is opened
    device = choose_device(config, world)
    meeting = choose_meeting(config, world, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    open_group(config, world, meeting, device)
    collectives = Collectives(default_group(), meeting)
    try:
        config, run_dir = _agree(config, explicit, world, device, collectives)
        on_terminal = environment.terminal if environment.terminal is not None else sys.stdout.isatty()
        team = Team(config, world, device, meeting, run_dir, on_terminal)
    except BaseException:
        collectives.release()  # the traceback would keep it, and with it Gloo's thread and socket
        close_group()
        raise
    _joined = team
    atexit.register(team.close)
    return team


def _agree(
    config: RunConfig, explicit: dict[str, Any], world: World, device: torch.device, collectives: Collectives
) -> tuple[RunConfig, Path]:
    """All ranks take the settings of the run's birth, which rank 0 reads or writes."""
    compare_ranks("settings", [f"{k}={v!r}" for k, v in dataclasses.asdict(config).items()], collectives)
    found: tuple[Path, Birth] | LockstepError | None = None
    if world.rank == 0:
        born_with = Birth(
            shards=config.shards or world.world_size,
            exact=promises_bits(config.strategy, shards_given=config.shards is not None),
            accumulate=config.accumulate,
            seed=config.seed,
            threads=config.threads or _default_threads(config.shards or world.world_size),
            precision=config.precision,
            device=device.type,
        )
        try:
            block(0, world.world_size, born_with.shards)
            found = open_run_dir(config, explicit, born_with)
        except LockstepError as error:
            found = error
    found = collectives.broadcast_object(found)
    if isinstance(found, LockstepError):
        raise found  # on every rank: they all end with the reason
    assert found is not None
    run_dir, birth = found
    block(world.rank, world.world_size, birth.shards)
    return (
        dataclasses.replace(
            config,
            strategy=resolve_strategy(config.strategy, world.world_size, is_exact=birth.exact),
            shards=birth.shards,
            accumulate=birth.accumulate,
            seed=birth.seed,
            threads=birth.threads,
            precision=birth.precision,
            run_dir=str(run_dir),
        ),
        run_dir,
    )


def _default_threads(num_shards: int) -> int:
    """The cores of a machine divided by all shards. (How many processes and machines there are now must not matter.)"""
    return max(1, num_cores() // num_shards)
