"""The rendezvous of a run's ranks: opening the store through which they exchange addresses."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from torch.distributed import DistError, FileStore, HashStore, PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError, PeerError
from lockstep._world.comm import horovod
from lockstep._world.comm.machines import find_machines
from lockstep._world.comm.tcp import client, tcp_store
from lockstep._world.comm.waiter import Waiter
from lockstep._world.environment import World
from lockstep._world.machine.addresses import is_loopback, with_port
from lockstep._world.machine.open_files import allow_connections
from lockstep._world.machine.tcp_store import first_line

_openings = itertools.count()
_on_leave: list[Callable[[], None]] = []
"""Callbacks for when this process no longer needs its store."""
_JOB_PORTS = range(10_000, 32_000)
"""The ports of jobs: below the range from which the system takes free ones."""
_BROKEN_OFF = "the rendezvous at {endpoint} was interrupted: rank 0, which hosts its store, has exited"


@dataclass(frozen=True, kw_only=True)
class OpenStore:
    """A store through which the ranks have found each other."""

    store: Store
    """The store, with a prefix for this process group."""
    world: World
    """The world, with all fields set."""
    host: str | None = None
    """A host that every machine of the run reaches, if one is known."""


def open_store(config: RunConfig, world: World) -> OpenStore:
    """Opens the store of this run. Every rank must call it; it blocks until all have, except with
    launchers that ensure it.

    Raises:
        ConfigError: the endpoint cannot be used, the rank of this process is unknown, or it may not
            have as many open files as ranks connect to it.
        PeerError: a rank did not arrive within the timeout.
    """
    timeout = datetime.timedelta(seconds=config.timeout_s)
    # Gloo opens one to each rank, and all may ask a store that rank 0 keeps
    allow_connections(2 * world.world_size)
    # A process that joins again must not find the addresses of its earlier group, which the store
    # may outlive.
    prefix = f"lockstep/{next(_openings)}"
    if config.init_method is None and world.store_path is not None:
        # A file in a private directory listens on nothing, so no other host can reach it.
        return OpenStore(store=PrefixStore(prefix, FileStore(world.store_path, world.world_size)), world=world)
    if config.init_method is None and world.launcher == "python":
        return OpenStore(store=PrefixStore(prefix, HashStore()), world=world)
    if config.init_method is None and world.launcher == "horovodrun":
        return OpenStore(store=PrefixStore(prefix, horovod.open_store(world, timeout)), world=world)
    if config.init_method is None and world.launchers_store is not None:
        return _open_launchers_store(world.launchers_store, prefix, world, config.timeout_s)
    if config.init_method is None and world.launcher == "slurm" and world.master is None and world.num_nodes > 1:
        return _open_job_store(prefix, world, config.timeout_s)
    endpoint = rendezvous_url(config.init_method, world)
    host = None if world.master is None else world.master[0]
    if endpoint == "env://":
        store, _, _ = next(rendezvous(endpoint, world.rank, world.world_size, timeout=timeout))
        store.set_timeout(timeout)
        return OpenStore(store=PrefixStore(prefix, store), world=find_machines(world, PrefixStore(prefix, store)), host=host)
    url = urlsplit(endpoint)
    waiter = Waiter(world.rank, world.world_size, endpoint, config.timeout_s)
    if url.scheme == "file":
        return _meet_in_file(Path(unquote(url.path).rstrip("/")), prefix, waiter, world)
    assert url.hostname is not None
    assert url.port is not None
    host = url.hostname
    # A loopback address on which all ranks agree means that all are on this machine, so no other is
    # listened to. (MASTER_ADDR may be localhost on rank 0's machine only.)
    is_here = "local_world_size" not in world.unsaid and world.local_world_size == world.world_size
    is_private = (endpoint == config.init_method or world.launcher == "lockstep" or is_here) and is_loopback(host)
    store = tcp_store(host, url.port, waiter, is_private=is_private)
    return _meet(store, prefix, waiter, world, host, _BROKEN_OFF)


def _open_launchers_store(endpoint: str, prefix: str, world: World, timeout_s: float) -> OpenStore:
    """Connects to the store kept by the launchers of several machines, with a prefix for each start
    of the processes."""
    url = urlsplit(endpoint)
    assert url.hostname is not None
    assert url.port is not None
    waiter = Waiter(world.rank, world.world_size, f"{url.hostname}:{url.port}", timeout_s)
    gone = "the launchers' store at {endpoint} no longer exists"
    try:
        store = client(url.hostname, url.port, waiter)
    except DistError as error:
        raise PeerError(f"{gone.format(endpoint=waiter.endpoint)} ({first_line(error)})", code="store-lost") from error
    return _meet(store, f"{unquote(url.path).strip('/')}/{prefix}", waiter, world, url.hostname, gone)


def _open_job_store(prefix: str, world: World, timeout_s: float) -> OpenStore:
    """Opens a store on the first node of a Slurm step, at a port derived from the numbers of job
    and step."""
    assert world.job is not None
    assert world.job.step is not None
    host = world.job.step.hosts[0]
    if world.rank == 0 and world.node_rank != 0:
        raise ConfigError(
            f"rank 0 is on node {world.job.step.hosts[world.node_rank]}, but the other ranks look for "
            f"it on {host}, the first of the step (was it started with --distribution=arbitrary?). "
            "Set MASTER_ADDR and MASTER_PORT, or pass init_method=",
            code="rank-0-elsewhere",
        )
    # Without a message between them, all ranks must come to one port, and jobs that share a host to
    # different ones. 997 is a prime and no factor of 22,000, the number of ports, so the first
    # 22,000 steps of a job have different ports. Few steps of other jobs share one: step s of job j
    # does with step s - 1 of job j + 997, and with step s + 22 of job j + 66 (66 + 22 * 997 =
    # 22,000).
    port = _JOB_PORTS[(int(world.job.number) + 997 * int(world.job.step.number)) % len(_JOB_PORTS)]
    endpoint = f"{host}:{port} (of job {world.job.number}, unless MASTER_ADDR and MASTER_PORT are set)"
    waiter = Waiter(world.rank, world.world_size, endpoint, timeout_s)
    store = tcp_store(host, port, waiter)
    return _meet(store, f"{world.job.name}/{world.job.restart}/{prefix}", waiter, world, host, _BROKEN_OFF)


def _meet_in_file(path: Path, prefix: str, waiter: Waiter, world: World) -> OpenStore:
    """Meets in a file of the directory ``PATH.lockstep``, which only this user can read, as the
    store contains the ranks' key.

    Each launch, restart and opening has a separate file, as far as the ranks know that; what a
    killed run has left in the same file is noticed by its ranks, which count as having arrived.
    """
    directory = path.with_name(f"{path.name}.lockstep")
    try:
        _make_private(directory)
    except OSError as error:
        raise ConfigError(
            f"{waiter.endpoint} cannot be used for a rendezvous: {error}. Use a path in an existing "
            "directory that all processes share and can write to.",
            code="rendezvous-file-unusable",
        ) from error
    launch = world.launch if world.launcher == "lockstep" and world.num_nodes == 1 else ""
    restarts = world.restart, 0 if world.job is None else world.job.restart
    file = directory / "-".join(["store", *filter(None, [launch]), *map(str, restarts), prefix.rpartition("/")[2]])
    # PyTorch removes the file with the last reference to it, of however many ranks
    store = FileStore(str(file), 0)
    _on_leave.append(lambda: _remove_empty(directory))
    try:
        gone = f"the rendezvous at {{endpoint}} was interrupted (if the file {file} is of a run that was killed, remove it)"
        return _meet(store, prefix, waiter, world, None, gone)
    except PeerError:
        with contextlib.suppress(DistError):  # to try again is no second arrival
            PrefixStore(prefix, store).add(f"arrived/{waiter.rank}", -1)
            if PrefixStore(prefix, store).add("arrived", -1) == 0:
                file.unlink()
                _remove_empty(directory)
        raise
    except ConfigError as error:
        raise ConfigError(
            f"{error}. If no other run uses it, remove {file}, which a killed run has left", code=error.code
        ) from error


def _make_private(directory: Path, attempts: int = 10) -> None:
    """Makes a directory, unless it is there, and checks that it is this user's."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    try:
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            raise PermissionError(f"{directory} is a link, or another user's")
    except FileNotFoundError:
        # A rank that leaves an earlier store has just removed it, empty (_remove_empty).
        if attempts == 1:
            raise
        _make_private(directory, attempts - 1)


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _meet(store: Store, prefix: str, waiter: Waiter, world: World, host: str | None, gone: str) -> OpenStore:
    """Waits for the other ranks at a store; ``gone`` is the error message if the store disappears
    meanwhile."""
    store.set_timeout(datetime.timedelta(seconds=waiter.timeout_s))
    prefixed = PrefixStore(prefix, store)
    try:
        _arrive(prefixed, waiter)
        world = find_machines(world, prefixed)
    except DistError as error:
        raise PeerError(f"{gone.format(endpoint=waiter.endpoint)} ({first_line(error)})", code="store-lost") from error
    return OpenStore(store=prefixed, world=world, host=host)


def leave_store() -> None:
    """Removes what a rendezvous has left, once the process group and its store are closed. Every
    rank should call it."""
    while _on_leave:
        _on_leave.pop()()


def rendezvous_url(init_method: str | None, world: World) -> str:
    """The rendezvous: ``tcp://...`` or ``file://...``; or ``env://`` under torchrun, whose agent
    keeps the store.

    Raises:
        ConfigError: it cannot be determined, or the rank of this process is unknown.
    """
    if world.launcher == "python":
        raise ConfigError(
            f"init_method={init_method!r}, but the rank of this process is unknown. Set RANK and "
            "WORLD_SIZE, pass rank= and world_size= to join(), or start the script with lockstep run",
            code="rank-unknown",
        )
    if init_method not in (None, "env://"):
        return str(init_method)
    if world.launcher == "torchrun":
        return "env://"
    if world.master is not None:
        host, port = world.master
        if not (port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(
                f"MASTER_ADDR={host}, and MASTER_PORT={port or ' is not set'}: set MASTER_PORT to a free port of that host",
                code="master-port-invalid",
            )
        return f"tcp://{with_port(host, port)}"
    # From here on MASTER_ADDR is not set. A file needs no port and no host name, but all ranks must
    # see it: only on one machine it is certain that they share a directory.
    is_placed = "local_world_size" not in world.unsaid
    if init_method is None and world.launcher == "slurm" and world.num_nodes == 1:
        assert world.job is not None
        return f"file://{tempfile.gettempdir()}/lockstep-{world.job.name.replace(' ', '-')}-{world.job.restart}"
    starts_all = world.launcher == "mpirun" and is_placed and world.local_world_size == world.world_size
    if init_method is None and starts_all:
        return f"file://{world.job_dir or _job_of_parent()}"
    here = f" ({world.local_world_size} of {world.world_size} processes are on this machine)" if is_placed else ""
    options = (
        "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500" if world.launcher == "mpirun" else "MASTER_ADDR and MASTER_PORT"
    )
    raise ConfigError(
        f"the processes have no rendezvous{here}: MASTER_ADDR is not set. Set the host of rank 0 "
        f"and a free port of it, with {options}, or with init_method= (tcp://HOST:PORT, or "
        "file:///PATH on a shared file system)",
        code="rendezvous-missing",
    )


def _job_of_parent() -> str:
    """A file that is named after the parent process, for launchers that give their jobs no
    directory: the parent starts all ranks of this machine, and no other job."""
    # In ticks since the machine's start: psutil adds when that was, which two ranks may see
    # differently.
    started = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{tempfile.gettempdir()}/lockstep-job-{os.getppid()}-{started}"


def _arrive(store: Store, waiter: Waiter) -> None:
    """Announces this rank, and waits until all ranks have arrived."""
    # The first rank to arrive sets it, and the others compare theirs with it.
    world_size = store.compare_set("world_size", "", str(waiter.world_size)).decode()
    if world_size != str(waiter.world_size):
        raise ConfigError(
            f"this process joined {waiter.endpoint} as rank {waiter.rank} of {waiter.world_size}, but "
            f"another as one of {world_size}. Start all with the same number of processes, or end the "
            "earlier run that still uses that endpoint",
            code="world-sizes-differ",
        )
    if store.add(f"arrived/{waiter.rank}", 1) > 1:
        store.add(f"arrived/{waiter.rank}", -1)
        raise ConfigError(
            f"two processes joined {waiter.endpoint} as rank {waiter.rank}. Give each a different "
            "rank, or end the earlier run that still uses that endpoint",
            code="rank-taken",
        )

    def missing() -> list[int]:
        # Adding 0 reads a counter that may not exist yet, for which `get` would wait.
        return [rank for rank in range(waiter.world_size) if store.add(f"arrived/{rank}", 0) == 0]

    # The last to arrive tells the others: with a look at every rank's key a thousand ranks would
    # ask a million times.
    if store.add("arrived", 1) == waiter.world_size:
        store.set("all_arrived", "")
    while not store.check(["all_arrived"]):
        waiter.pause(missing)
