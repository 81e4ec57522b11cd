"""``join()``: creates a team from the environment, the command line and the script's settings.

::

    each rank alone    read the environment, merge the settings of command and script, choose the
        |              device: an error ends the rank before any other waits for it
    rendezvous         open_store, open_group: ranks find and verify each other
        |
    agreement          all compare software and settings; rank 0 opens the run (``opening``)
        |              and broadcasts its birth and checkpoint, or its error, which all raise
    engine, team       created with the settings of the birth, by which a resumed run continues

Whatever can be wrong is found as far up as possible. Below the rendezvous, an error on one rank
would leave the others waiting until the timeout. So an agreement is checked on exchanged values,
and fails on every rank."""

from __future__ import annotations

import dataclasses
import inspect
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lockstep._base import errors
from lockstep._base.config import STRATEGIES, AskedSettings, RunConfig, merge_settings
from lockstep._base.errors import ConfigError, LockstepError, UsageError
from lockstep._base.reports import NOTICE, Report, publish, warn
from lockstep._data.many_workers import hold_back_warning
from lockstep._data.streams import script_seed
from lockstep._joining.engine import Engine, RunContext
from lockstep._joining.excepthook import install_excepthook
from lockstep._joining.instrument import make_instruments
from lockstep._joining.opening import LaunchRequest, OpenRun, open_run
from lockstep._joining.startup.consistency import check_not_imported, check_run_dir_shared, check_software
from lockstep._joining.startup.host import host_of_this_process, host_with_handler
from lockstep._joining.team import Team
from lockstep._plan.blocks import block
from lockstep._state.recovery.resuming import Checkpoint
from lockstep._state.recovery.software import numerics
from lockstep._state.rundir.fixed_settings import Command, FixedSettings
from lockstep._state.rundir.lock import RunLock
from lockstep._sync.table import resolve_strategy
from lockstep._world.comm.agreement import compare_ranks
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.group import (
    Transport,
    check_not_open,
    choose_devices,
    choose_transport,
    close_group,
    default_group,
    open_group,
)
from lockstep._world.comm.machines import owns_gpu_exclusively
from lockstep._world.comm.store import OpenStore, open_store
from lockstep._world.environment import Environment, World, read_environment
from lockstep._world.job.several import check_several
from lockstep._world.kernels import (
    SET_TOO_LATE,
    check_allowed_operations,
    may_set_cublas_too_late,
    needs_deterministic_kernels,
)
from lockstep._world.machine.cores import threads_for
from lockstep._world.machine.threads import use_threads

_joined: Team | None = None
_num_joined = 0


def _with_settings(function: Callable[..., Team]) -> Callable[..., Team]:
    """Sets the signature of ``join`` that ``help()`` shows. (For type checkers,
    ``lockstep._tools.arguments`` adds the options of tools; importing this module imports no tool.)
    """
    signature = inspect.signature(function)
    *own, others = signature.parameters.values()
    settings = inspect.signature(RunConfig).parameters.values()
    function.__signature__ = signature.replace(parameters=[*own, *settings, others])  # type: ignore[attr-defined]
    return function


def joined_team() -> Team | None:
    """Returns the team of the run that this process takes part in; None: it takes part in none."""
    return None if _joined is None or _joined.is_closed else _joined


@_with_settings
def join(*, rank: int | None = None, world_size: int | None = None, **settings: Any) -> Team:
    """Join the run for which this process was started, alone or as one of many. Call it once, at
    the top of the script.

    Every rank must call it; it returns when all have. It opens the process group, chooses the
    device, sets the number of threads and the random streams, and opens the run directory.

    Args:
        rank: the rank of this process, if it was started by hand. None: set by the launcher, or
            by the environment variable RANK.
        world_size: the number of processes; required if and only if ``rank`` is passed.
        settings: fields of ``RunConfig``, and options of tools, as for ``lockstep run``.

    Raises:
        ConfigError: a setting is invalid, or not available here.
        UsageError: this process has joined before, or has opened a process group; or
            multiprocessing has started it from a script that trains at its top level.
        PeerError: the other ranks did not arrive at the rendezvous within the timeout.
        MismatchError: the ranks were started with different settings.
        CheckpointError: the run to resume has checkpoints, and all of them are damaged.
    """
    global _joined, _num_joined
    check_not_imported()
    install_excepthook()
    if joined_team() is not None:
        raise UsageError(
            "join() was already called in this process. Reuse the team that it returned.", code="join-called-twice"
        )
    is_late, environment = may_set_cublas_too_late(), read_environment()
    instruments, script_settings = make_instruments(environment.asked), dict(settings)
    for instrument in instruments.values():
        settings = dict(instrument.given(settings))
    asked = merge_settings(environment.settings, settings)
    if asked.run.seed is None and (seed := script_seed()) is not None:
        # The script's seed becomes the run's, so that another seed means another run.
        asked = asked.with_seed(seed)
    config = asked.run
    for name, instrument in instruments.items():
        instrument.options = asked.tools.get(name)
        config = instrument.settings(config)
    world = environment.world.by_hand(rank, world_size)
    if environment.several is not None and rank is None and not environment.asked:
        several = environment.several
        script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "SCRIPT"
        warn(check_several(several, f"{several.alone} {script}", script), code="one-of-several")
    check_not_open()
    _choose(config, world)  # invalid settings are reported before any rank waits for others
    try:
        opened = open_store(config, world)
        world = opened.world
        # Again, with what the rendezvous has shown: which ranks share a machine, and which a GPU.
        devices, transport = _choose(config, world, opened)
        if devices[0].type != "cpu":
            torch.accelerator.set_device_index(devices[0])
        open_group(opened, transport, devices)
    except BaseException:
        close_group(failed=True)
        raise
    collectives = Collectives(default_group(), transport)
    try:
        config, context = _agree(config, asked, environment, world, devices[0].type, collectives)
        check_allowed_operations(config, devices)  # a resumed run has those of its birth
        context = dataclasses.replace(
            context,
            script_settings=script_settings,
            requests=environment.asked,
            on_terminal=environment.terminal if environment.terminal is not None else sys.stdout.isatty(),
        )
        use_threads(context.fixed_settings.threads)
        hold_back_warning()
        if is_late and world.rank == 0 and needs_deterministic_kernels(config, devices[0]):
            publish(Report(kind=NOTICE, text=SET_TOO_LATE, code="cublas-variable-late", is_warning=False))
        engine = Engine(config, world, devices, transport, context, list(instruments.values()))
        team = Team(engine)
    except BaseException:
        # Otherwise the traceback would keep the group alive, and with it Gloo's thread and socket.
        collectives.release()
        close_group(failed=True)
        raise
    _joined = team
    _num_joined += 1
    engine.at_exit.call(team.close_at_exit)
    return team


def _choose(config: RunConfig, world: World, opened: OpenStore | None = None) -> tuple[tuple[torch.device, ...], Transport]:
    devices = choose_devices(config, world)
    check_allowed_operations(config, devices)
    num_shards = config.shards or world.world_size
    resolve_strategy(config.strategy, world.world_size, num_shards, is_exact=True, on_gpus=devices[0].type != "cpu")
    are_own = owns_gpu_exclusively(world, devices, None if opened is None else opened.store)
    return devices, choose_transport(config, world, devices, None if opened is None else opened.host, are_own=are_own)


def _agree(
    config: RunConfig,
    asked: AskedSettings,
    environment: Environment,
    world: World,
    device: str,
    collectives: Collectives,
) -> tuple[RunConfig, RunContext]:
    """Makes all ranks use the settings of the run's birth, which rank 0 reads or writes."""
    check_software(world, collectives)
    values = (config, *asked.tools.values())
    given = {name: value for each in values for name, value in dataclasses.asdict(each).items()}
    if STRATEGIES[config.strategy].promises_bits and "numerics" not in config.allow:
        # PyTorch's own numeric settings change bits, too, and a script may set them on some ranks
        # only.
        given |= numerics()
    compare_ranks(
        "settings",
        [f"{k}={v!r}" for k, v in given.items()],
        collectives,
        "Pass the same options on every command line and in join(), and use the same GPUs. (With --allow numerics, GPUs and "
        "PyTorch's numeric settings may differ, and results are then not bit-identical.)",
    )
    opening: dict[str, Any] = {}
    lock: RunLock | None = None
    is_new, notices, shards_are_set = True, list[str](), config.shards is not None
    if world.rank == 0:
        try:
            run = _open(config, asked, environment, world, device)
            opening = {
                # Other machines may have started the script in other directories.
                "run_dir": str(run.run_dir if world.num_nodes == 1 else run.run_dir.absolute()),
                "birth": run.birth.as_json(),
                "checkpoint": None if run.checkpoint is None else run.checkpoint.as_json(),
            }
            lock, is_new, notices = run.lock, run.is_new, [notice.text for notice in run.notices]
        except LockstepError as error:
            # Sent instead of raised here: the others wait in the broadcast below. As the nearest
            # class of `errors`, which every rank can create from a message.
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in vars(errors))
            opening = {"error": (kind, str(error), error.code)}
    opening = collectives.broadcast_plain(opening)
    if "error" in opening:
        kind, message, code = opening["error"]
        raise vars(errors)[kind](message, code=code)  # on every rank
    run_dir, birth = Path(opening["run_dir"]), FixedSettings(**opening["birth"])
    checkpoint = None if opening["checkpoint"] is None else Checkpoint.from_json(opening["checkpoint"])
    # Of rank 0, since each rank has drawn another one.
    token = collectives.broadcast_plain(secrets.token_hex(4))
    check_run_dir_shared(run_dir, token, world, collectives)
    config = dataclasses.replace(
        config,
        strategy=resolve_strategy(
            config.strategy, world.world_size, birth.shards, is_exact=birth.exact, on_gpus=device != "cpu"
        ),
        shards=birth.shards,
        accumulate=birth.accumulate,
        seed=birth.seed,
        threads=birth.threads,
        precision=birth.precision,
        nondeterministic=birth.nondeterministic,
        run_dir=str(run_dir),
    )
    block(world.rank, world.world_size, birth.shards)
    return config, RunContext(
        run_dir=run_dir,
        fixed_settings=birth,
        checkpoint=checkpoint,
        lock=lock,
        launch_id=token,
        is_new=is_new,
        shards_are_set=shards_are_set,
        notices=notices,
    )


def _open(config: RunConfig, asked: AskedSettings, environment: Environment, world: World, device: str) -> OpenRun:
    """Finds or creates the run, on rank 0, while the others wait."""
    num_shards = config.shards or world.world_size
    block(0, world.world_size, num_shards)  # more processes than shards is an error
    born_with = FixedSettings(
        shards=num_shards,
        exact=STRATEGIES[config.strategy].promises_bits,
        accumulate=config.accumulate,
        seed=config.seed or 0,
        threads=config.threads or environment.threads or threads_for(num_shards, world.num_cores),
        precision=config.precision,
        device=device,
        nondeterministic=tuple(config.nondeterministic),
    )
    part = "" if world.job is None else world.job.part
    is_program = world.is_program
    if is_program and config.run_dir is None and (host := host_of_this_process()) is not None:
        if config.interval != "off" and not config.fresh:
            raise ConfigError(
                f"{host} ({sys.argv[0]}) runs this training, so the command does not identify the run to resume. Set a run "
                "directory, a different one for each training: join(run_dir=...). (Not needed without checkpoints: "
                "checkpoint_every='off'.)",
                code="run-dir-needed",
            )
        is_program = False
    # With the number of the call: a script that trains twice resumes its first run in its first
    # `join`, and its second run in its second.
    command = Command.of_this_process(_num_joined, is_program=is_program, asked=asked, part=part)
    run = open_run(LaunchRequest(config=config, givers=asked.givers, born_with=born_with, command=command, world=world))
    if config.threads is None and environment.threads is not None and not environment.asked:
        _report_threads(environment.threads, run, threads_for(num_shards, world.num_cores))
    if config.interval != "off" and (host := host_with_handler(signal.SIGTERM)) is not None:
        warn(
            f"{host} handles SIGTERM in this process, so the run is not saved when SIGTERM arrives. To save it, restore the "
            "default before join(): signal.signal(signal.SIGTERM, signal.SIG_DFL)",
            code="sigterm-handled",
        )
    return run


def _report_threads(given: int, run: OpenRun, own: int) -> None:
    """Report what OMP_NUM_THREADS does to this run. Platforms set it (Ray, to the CPUs of a
    worker), and users do not see that: the same script may then give other bits than elsewhere."""
    if run.is_new and given != own:
        text = (
            f"{given} threads per process, as OMP_NUM_THREADS is set ({own} otherwise). The results' last bits depend on "
            f"this number. For bit-identical results where that variable differs, set threads={given} (--threads {given})"
        )
    elif not run.is_new and given != run.birth.threads:
        text = (
            f"OMP_NUM_THREADS={given} is ignored: this run was started with {run.birth.threads} threads per process, and its "
            f"results depend on this number. To change it: --threads {given} --allow threads"
        )
    else:
        return
    publish(Report(kind=NOTICE, text=text, code="threads-from-environment", is_warning=False))
