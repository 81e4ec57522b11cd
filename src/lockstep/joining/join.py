"""``join()``: from the environment, the command line and the script to a team that has agreed on what it runs."""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import multiprocessing
import secrets
import sys
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, ParamSpec

import torch

from lockstep.comm.agreement import compare_ranks
from lockstep.comm.collectives import Collectives
from lockstep.comm.group import (
    Transport,
    check_not_open,
    choose_devices,
    choose_transport,
    close_group,
    default_group,
    open_group,
)
from lockstep.comm.store import open_store
from lockstep.config import RunConfig
from lockstep.data.streams import script_seed
from lockstep.errors import LockstepError, UsageError
from lockstep.joining.opening import Launch, open_run
from lockstep.machine.cores import num_cores
from lockstep.machine.threads import use_threads
from lockstep.parts import Parts, RunContext
from lockstep.plan.shards import block
from lockstep.recovery.resuming import Checkpoint
from lockstep.rundir.birth import Birth, Command
from lockstep.rundir.lock import RunLock
from lockstep.startup.consistency import check_sight, check_software
from lockstep.sync.table import promises_bits, resolve_strategy
from lockstep.team import Team
from lockstep.world import Environment, World, read_environment

P = ParamSpec("P")

_joined: Team | None = None
_num_joined = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Arguments(RunConfig):
    """What ``join`` takes, for type checkers, editors and ``help()``: the settings are listed once, in ``RunConfig``."""

    rank: int | None = None
    world_size: int | None = None


def _takes(arguments: Callable[P, object]) -> Callable[[Callable[..., Team]], Callable[P, Team]]:
    def sign(function: Callable[..., Team]) -> Callable[P, Team]:
        signature = inspect.signature(arguments).replace(return_annotation="Team")
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return sign


@_takes(_Arguments)
def join(*, rank: int | None = None, world_size: int | None = None, **settings: Any) -> Team:
    """Join the run that this process was started for: alone, or one of many. Call it once, first thing.

    Every rank must call it; it returns when all have. It opens the process group, chooses the device, sets the number of
    threads and the random streams, and opens the run's directory.

    Args:
        rank: which of the processes this is, where each was started by hand with a number of its own. None: the launcher
            has said it, or the variable RANK does.
        world_size: how many processes there are; given if and only if ``rank`` is.
        settings: all others, each as ``RunConfig`` says of it.

    Raises:
        ConfigError: a setting cannot be meant, or cannot be had here.
        UsageError: this process has joined before, or has opened a process group of its own.
        PeerError: the others did not come in time to where the processes meet.
        MismatchError: the ranks were started with different settings.
        CheckpointError: the run that would go on has checkpoints, and all of them are damaged.
    """
    global _joined, _num_joined
    if _joined is not None and not _joined.is_closed:
        raise UsageError("join() was called before in this process: keep the team it returned, there is one a process")
    environment = read_environment()
    explicit = {**settings, **environment.settings}
    config = RunConfig.merge(environment.settings, settings)
    if config.seed is None and (seed := script_seed()) is not None:
        explicit["seed"] = seed  # the script's seed is the run's: another one is another run
        config = dataclasses.replace(config, seed=seed)
    world = environment.world.by_hand(rank, world_size)
    check_not_open()
    _choose(config, world, None)  # what cannot be is said before anybody waits for others
    try:
        found = open_store(config, world)
        world = found.world
        devices, transport = _choose(config, world, found.host)
        if devices[0].type == "cuda":
            torch.cuda.set_device(devices[0])
        open_group(found, transport, devices)
    except BaseException:
        close_group()
        raise
    collectives = Collectives(default_group(), transport)
    try:
        config, context = _agree(config, explicit, environment, world, devices[0].type, collectives)
        assert config.threads is not None
        use_threads(config.threads)
        on_terminal = environment.terminal if environment.terminal is not None else sys.stdout.isatty()
        team = Team(Parts(config, world, devices, transport, context, on_terminal))
    except BaseException:
        collectives.release()  # the traceback would keep it, and with it Gloo's thread and socket
        close_group()
        raise
    _joined = team
    _num_joined += 1
    atexit.register(team.close_at_exit)
    if multiprocessing.parent_process() is not None:  # there nobody calls what is registered with atexit
        Finalize(None, team.close_at_exit, exitpriority=100)
    return team


def _choose(config: RunConfig, world: World, host: str | None) -> tuple[tuple[torch.device, ...], Transport]:
    devices = choose_devices(config, world)
    resolve_strategy(config.strategy, world.world_size, is_exact=False, on_gpus=devices[0].type == "cuda")
    return devices, choose_transport(config, world, devices, host)


def _agree(
    config: RunConfig,
    explicit: dict[str, Any],
    environment: Environment,
    world: World,
    device: str,
    collectives: Collectives,
) -> tuple[RunConfig, RunContext]:
    """All ranks take the settings of the run's birth, which rank 0 reads or writes."""
    odd = check_software(world, collectives)
    compare_ranks(
        "settings",
        [f"{k}={v!r}" for k, v in dataclasses.asdict(config).items()],
        collectives,
        "Give all of them the same options on the command line, and in join()",
    )
    found: tuple[Path, Birth, Checkpoint | None] | LockstepError | None = None
    lock: RunLock | None = None
    is_new, notices = True, list[str]()
    if world.rank == 0:
        born_with = Birth(
            shards=config.shards or world.world_size,
            exact=promises_bits(config.strategy, shards_given=config.shards is not None),
            accumulate=config.accumulate,
            seed=config.seed or 0,
            threads=config.threads or environment.threads or _default_threads(config.shards or world.world_size, world),
            precision=config.precision,
            device=device,
        )
        try:
            block(0, world.world_size, born_with.shards)
            run = open_run(
                Launch(
                    config=config,
                    explicit=explicit,
                    born_with=born_with,
                    command=Command.of_this_process(
                        _num_joined,
                        is_program=world.is_program,
                        explicit=explicit,
                        part="" if world.job is None else world.job.part,
                    ),
                    world=world,
                )
            )
            found = (_for_all(run.run_dir, world), run.birth, run.checkpoint)
            lock, is_new, notices = run.lock, run.is_new, [*run.notices, *_not_heeded(config, environment, run.birth)]
        except LockstepError as error:
            found = error
    found = collectives.broadcast_object(found)
    if isinstance(found, LockstepError):
        raise found  # on every rank: they all end with the reason
    assert found is not None
    run_dir, birth, checkpoint = found
    token = collectives.broadcast_object(secrets.token_hex(4))
    check_sight(run_dir, token, world, collectives)
    config = dataclasses.replace(
        config,
        strategy=resolve_strategy(config.strategy, world.world_size, is_exact=birth.exact, on_gpus=device == "cuda"),
        shards=birth.shards,
        accumulate=birth.accumulate,
        seed=birth.seed,
        threads=birth.threads,
        precision=birth.precision,
        run_dir=str(run_dir),
    )
    block(world.rank, world.world_size, birth.shards)
    return config, RunContext(
        run_dir=run_dir, birth=birth, checkpoint=checkpoint, lock=lock, token=token, is_new=is_new, notices=odd + notices
    )


def _for_all(run_dir: Path, world: World) -> Path:
    """Other machines may have started the script in another directory."""
    return run_dir if world.num_nodes == 1 else run_dir.absolute()


def _not_heeded(config: RunConfig, environment: Environment, birth: Birth) -> list[str]:
    """OMP_NUM_THREADS is a default, and a run that was born before it was set keeps its answer."""
    if config.threads is not None or environment.threads in (None, birth.threads):
        return []
    threads = "1 thread" if birth.threads == 1 else f"{birth.threads} threads"
    return [
        f"OMP_NUM_THREADS={environment.threads} is not heeded: the run was born with {threads}, and with another number its "
        f"answer would be another. To have it all the same: --threads {environment.threads} --allow threads"
    ]


def _default_threads(num_shards: int, world: World) -> int:
    """The cores of a machine divided by all shards. (How many processes and machines there are now must not matter.)"""
    return max(1, (world.num_cores or num_cores()) // num_shards)
