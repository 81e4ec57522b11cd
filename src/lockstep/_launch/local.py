"""A launch on this machine: the checks before it, and its starts.

::

    run_workers: all starts                          run_once: one start
      start-0, a port ---> workers ---> failure        Streams    where output goes
         |                                             supervise  until all workers have exited
         | restarts.follows: some are left, and        drain      what they have written last
         | the failure would not recur                 append     failures, to the logs of ranks
         v
      start-1, a port ---> workers ---> success

Each start has a separate directory: the workers meet in a file there, in which the entries of
earlier ranks would be taken for theirs. The fork server stays, so a restart does not wait for an
import of torch. Restarted workers run the same program; ``lockstep.join`` finds the newest
checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._base.errors import ConfigError, LaunchError
from lockstep._launch import failures, gpus, restarts
from lockstep._launch.output import OutputPlan, Streams
from lockstep._launch.server import ForkServer
from lockstep._launch.signals import Interrupts
from lockstep._launch.spec import LaunchSpec
from lockstep._launch.supervise import LaunchResult, supervise
from lockstep._world.machine.cores import num_cores


def resolve_nproc(asked: str | int | None, config: RunConfig | None = None) -> int:
    """The number of processes for a number, ``cpu``, ``gpu``, ``auto`` or None (one per GPU,
    otherwise one).

    With several devices per process, ``gpu`` means one per so many GPUs; with a strategy for one
    process, None means one.

    Raises:
        ConfigError: it is invalid, or means none.
    """
    each = (config.devices_per_process if config else None) or 1
    if asked is None:
        is_one = config is not None and STRATEGIES[config.strategy].one_process
        return 1 if is_one else max(1, gpus.num_gpus_here() // each)
    if asked == "auto":
        return gpus.num_gpus_here() // each or num_cores()
    if asked == "cpu":
        return num_cores()
    if asked == "gpu":
        count = gpus.num_gpus_here()
        if count == 0:
            raise ConfigError(
                "--nproc-per-node gpu: no CUDA GPU is visible here, or torch was built without CUDA",
                code="nproc-gpu-without-gpus",
            )
        if count < each:
            raise ConfigError(
                f"--nproc-per-node gpu with {each} devices per process: only {count} CUDA GPUs are visible",
                code="nproc-gpu-too-few",
            )
        return count // each
    try:
        count = int(asked)
    except ValueError:
        count = 0
    if count < 1:
        raise ConfigError(
            f"--nproc-per-node {asked}: pass a number, 1 or more, or one of auto, cpu, gpu", code="nproc-invalid"
        )
    return count


def check_fit(config: RunConfig, nproc: int, num_others: int = 0, where: str = "") -> None:
    """Checks that settings can work with ``nproc`` processes here and at least ``num_others``
    elsewhere, before any is started.

    Args:
        where: the line of the script that gives the number of shards; empty: none does.

    Raises:
        ConfigError: they cannot, with this number of processes, or on this machine.
    """
    strategy = STRATEGIES[config.strategy]
    if strategy.one_process and nproc > 1:
        raise ConfigError(
            f"strategy {config.strategy} runs in one process, but {nproc} were requested. Remove one of the two",
            code="strategy-of-one-process",
        )
    if strategy.needs == "gpus" and (config.device == "cpu" or gpus.num_gpus_here() == 0):
        why = "--device cpu was passed" if config.device == "cpu" else "none is visible here, or torch has no CUDA"
        raise ConfigError(
            f"strategy {config.strategy} needs CUDA GPUs, and {why}. Use strategy single, or several "
            "processes with strategy ddp (--nproc-per-node 2)",
            code="strategy-needs-gpus",
        )
    least = nproc + num_others
    if config.shards is not None and config.shards < least:
        elsewhere = f" ({nproc} here, and at least one on each of the other nodes)" if num_others else ""
        more = f"pass shards={least} or more in {where}" if where else f"pass --shards {least} or more"
        raise ConfigError(
            f"{least} processes{elsewhere} but only {config.shards} "
            f"shard{'s' if config.shards > 1 else ''}: each process needs at least one. Use at most "
            f"{config.shards} processes, or {more}",
            code="processes-above-shards",
        )
    if config.backend == "mpi":
        raise ConfigError(
            "backend mpi needs processes that mpirun starts (mpirun -np 2 python SCRIPT), and a "
            "PyTorch built from source with MPI. Remove it, or use gloo (or nccl, with a GPU for "
            "each process)",
            code="backend-mpi-launched",
        )
    if config.device == "cuda" or config.backend == "nccl":
        asked = "device cuda" if config.device == "cuda" else "backend nccl"
        count = gpus.num_gpus_here()
        may_share = count > 0 and config.backend == "gloo"  # requested, and possible
        each = config.devices_per_process or 1
        if nproc * each > count and not may_share:
            why = "" if gpus.torch_has_cuda() else " (the installed torch is built without CUDA)"
            raise ConfigError(
                f"{asked} for {nproc} processes, but {count} CUDA GPUs are visible{why}: each process "
                f"needs {'its own' if each == 1 else each}. Use "
                f"{'fewer processes, or backend gloo to share GPUs' if count else 'device cpu'}",
                code="gpus-too-few",
            )


@contextmanager
def reserved_port(asked: int = 0) -> Iterator[int]:
    """A context in which a port is reserved, but a worker's TCP store can listen on it. ``asked``:
    which; 0: any.

    A socket is bound and does not listen: with SO_REUSEADDR on both sides (the TCP store sets it)
    the kernel lets the store bind the same port, and does not give it to a program that requests
    any free one."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", asked))
        except OSError as error:
            raise ConfigError(
                f"port {asked} of this machine is not available ({error.strerror}). Without "
                "--master-port, a free port is used",
                code="port-in-use",
            ) from error
        yield holder.getsockname()[1]


def run_workers(launch: LaunchSpec, server: ForkServer, plan: OutputPlan, interrupts: Interrupts) -> LaunchResult:
    """Runs a program in workers of this machine to its end. Afterwards all processes have exited,
    and all output is written.

    If a worker fails, all are restarted, at most ``launch.max_restarts`` times. Restarts are
    reported on standard error.

    Raises:
        ConfigError: the requested port is not free.
        LaunchError: the workers could not be started.
    """
    for restart in itertools.count():
        # The file of a rendezvous cannot be used again.
        start_dir = Path(launch.private_dir, f"start-{restart}")
        start_dir.mkdir(mode=0o700)
        with reserved_port(launch.master_port) as port:
            spec = dataclasses.replace(launch, private_dir=str(start_dir), master_port=port, restart=restart)
            outcome = run_once(spec, server, plan, interrupts)
        if not _starts_again(outcome):
            return outcome
        with contextlib.suppress(OSError):  # a reader that left early must not stop the run
            print(restarts.announce(outcome.failures, spec, attached=plan.attach), file=sys.stderr, flush=True)
    raise AssertionError


def _starts_again(outcome: LaunchResult) -> bool:
    failed = outcome.failures and outcome.stopped_by is None
    return bool(failed) and restarts.follows(outcome.spec, outcome.failures[0])


def run_once(spec: LaunchSpec, server: ForkServer, plan: OutputPlan, interrupts: Interrupts) -> LaunchResult:
    """Runs the workers of one start to their end. Afterwards all processes have exited, and all
    output is written.

    Raises:
        LaunchError: they could not be started.
    """
    continuation = f"{restarts.numbered(spec.restart, spec)}, {time.ctime()}" if spec.restart else ""
    with Streams(spec.ranks, plan, continuation=continuation) as streams:
        try:
            outcome = supervise(server, spec, streams, interrupts)
        except LaunchError as error:
            if not spec.max_restarts:
                raise
            raise LaunchError(f"{error}\n\nlockstep: not started again: no process failed, the start did") from error
        streams.drain(give_up=lambda: bool(interrupts.received))
        streams.append(failures.logs(outcome.failures))
    return outcome
