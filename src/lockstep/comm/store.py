"""Where the ranks of a run find each other: the store in which each leaves its address for the others."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from torch.distributed import DistError, FileStore, HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from lockstep.comm import horovod
from lockstep.comm.places import find_places
from lockstep.comm.shared_file import SharedFile
from lockstep.comm.waiting import Wait
from lockstep.config import RunConfig
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World

_openings = itertools.count()
_tcp_stores: dict[tuple[str, int, int], TCPStore] = {}
"""By host, port and rank. They stay for the life of the process: one that joins again must not come to a server that is just
closing."""
_leave: list[Callable[[], None]] = []
"""What is to be done when this process has no more use for its store."""


@dataclass(frozen=True, kw_only=True)
class OpenStore:
    """A store in which the ranks have met."""

    store: Store
    """For this group alone."""
    world: World
    """Complete, also where no launcher has said who shares a machine."""
    host: str | None = None
    """A host that every machine of the run reaches, as far as one is known."""


def open_store(config: RunConfig, world: World) -> OpenStore:
    """Meet the other ranks. Every rank must call it; it blocks until all have, except under launchers that watch over that.

    Raises:
        ConfigError: the place cannot be used, or nobody has said which rank this is.
        PeerError: a rank has not come in time.
    """
    timeout = datetime.timedelta(seconds=config.timeout_s)
    # A process that joins again must not find the addresses of its earlier group: the store may outlive it.
    prefix = f"lockstep/{next(_openings)}"
    if config.init_method is None and world.store_path is not None:
        # A file in a private directory listens on nothing, so no other host can reach it.
        return OpenStore(store=PrefixStore(prefix, FileStore(world.store_path, world.world_size)), world=world)
    if config.init_method is None and world.launcher == "python":
        return OpenStore(store=PrefixStore(prefix, HashStore()), world=world)
    if config.init_method is None and world.launcher == "horovodrun":
        return OpenStore(store=PrefixStore(prefix, horovod.open_store(world, timeout)), world=world)
    place = meeting_place(config.init_method, world)
    host = None if world.master is None else world.master[0]
    if place == "env://":
        store, _, _ = next(rendezvous(place, world.rank, world.world_size, timeout=timeout))
        store.set_timeout(timeout)
        return OpenStore(store=PrefixStore(prefix, store), world=find_places(world, PrefixStore(prefix, store)), host=host)
    url = urlsplit(place)
    wait = Wait(world.rank, world.world_size, place, config.timeout_s)
    if url.scheme == "file":
        shared = SharedFile(Path(unquote(url.path).rstrip("/")), wait)
        _leave.append(shared.leave)
        store = shared.store
    else:
        assert url.hostname is not None
        assert url.port is not None
        host = url.hostname
        # Whoever is told by an address of loopback that all are on this machine listens to no other.
        is_private = place == config.init_method or world.launcher == "lockstep"
        store = _tcp_store(host, url.port, wait, is_private=is_private)
    store.set_timeout(timeout)
    own = PrefixStore(prefix, store)
    try:
        _arrive(own, wait)
        world = find_places(world, own)
    except DistError as error:
        raise PeerError(
            f"the meeting at {place} broke off: rank 0, which keeps it, has ended ({_first_line(error)})"
        ) from error
    return OpenStore(store=own, world=world, host=host)


def leave_store() -> None:
    """Have no more use for the store. Every rank should call it, while the store is still there."""
    while _leave:
        _leave.pop()()


def meeting_place(init_method: str | None, world: World) -> str:
    """Where to meet: ``tcp://...`` or ``file://...``; or ``env://`` under torchrun, whose agent keeps the store.

    Raises:
        ConfigError: nobody has said that, or which rank this is.
    """
    if world.launcher == "python":
        raise ConfigError(
            f"init_method={init_method!r}, and nobody has said which rank this process is: set RANK and WORLD_SIZE, give "
            "rank= and world_size= to join(), or start the script by lockstep run"
        )
    if init_method not in (None, "env://"):
        return str(init_method)
    if world.launcher == "torchrun":
        return "env://"
    if world.master is not None:
        host, port = world.master
        if not (port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(
                f"MASTER_ADDR={host}, and MASTER_PORT={port or ' is not set'}: set it to a free port of that host"
            )
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
    known = "local_world_size" not in world.unsaid
    if init_method is None and world.launcher == "mpirun" and known and world.local_world_size == world.world_size:
        return f"file://{world.job_dir or _job_of_parent()}"
    told = f" ({world.local_world_size} of {world.world_size} processes are on this machine)" if known else ""
    how = "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500" if world.launcher == "mpirun" else "MASTER_ADDR and MASTER_PORT"
    raise ConfigError(
        f"the processes do not know where to meet{told}: MASTER_ADDR is not set. Name rank 0's machine and a free port of it, "
        f"with {how}, or with init_method= (tcp://HOST:PORT, or file:///PATH on a file system that they share)"
    )


def _job_of_parent() -> str:
    """For an mpirun that gives its jobs no directory: its process starts all ranks of this machine, and no other job."""
    started = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{tempfile.gettempdir()}/lockstep-mpi-{os.getppid()}-{started}"


def _arrive(store: Store, wait: Wait) -> None:
    """Tell the others that this rank is here, and wait until all are."""
    found = store.compare_set("world_size", "", str(wait.world_size)).decode()
    if found != str(wait.world_size):
        raise ConfigError(
            f"this process came to {wait.place} as rank {wait.rank} of {wait.world_size}, and another as one of {found}: start "
            "all of them with the same number, or end the earlier run that still meets there"
        )
    if store.add(f"arrived/{wait.rank}", 1) > 1:
        raise ConfigError(
            f"two processes came to {wait.place} as rank {wait.rank}: give each a rank of its own, or end the earlier run that "
            "still meets there"
        )

    def missing() -> list[int]:
        return [rank for rank in range(wait.world_size) if not store.check([f"arrived/{rank}"])]

    for rank in range(wait.world_size):
        while not store.check([f"arrived/{rank}"]):
            wait.pause(missing)


def _tcp_store(host: str, port: int, wait: Wait, *, is_private: bool) -> TCPStore:
    key = (host, port, wait.rank)
    if key not in _tcp_stores:
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(f"{wait.place}: this machine knows no host {host!r} ({error})") from error
        _tcp_stores[key] = _serve(host, port, wait, is_private) if wait.rank == 0 else _connect(host, port, wait)
    return _tcp_stores[key]


def _serve(host: str, port: int, wait: Wait, is_private: bool) -> TCPStore:
    """Rank 0's end, and with it the store itself."""
    address = _loopback(host) if is_private else None
    try:
        if address is not None:
            listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listener = socket.create_server(("", port))
    except OSError as error:
        raise ConfigError(
            f"{wait.place}: rank 0 cannot listen on port {port} of this machine ({error.strerror}). If another run "
            "or program uses it, choose another port, or end that"
        ) from error
    timeout = datetime.timedelta(seconds=max(1.0, wait.remaining_s))
    return TCPStore(address or "127.0.0.1", port, None, True, timeout, False, master_listen_fd=listener.detach())


def _connect(host: str, port: int, wait: Wait) -> TCPStore:
    # PyTorch's client tries again and again too, but with pages of warnings.
    while True:
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(2.0, wait.remaining_s))).close()
            break
        except OSError as error:
            reason = f"{host}:{port}: {error.strerror or error}"
        wait.pause(lambda: [0], hint=reason)
    # It waits for ever for an answer from a program that gives none; a thread can be left alone with that.
    found: list[TCPStore | BaseException] = []

    def connect() -> None:
        timeout = datetime.timedelta(seconds=max(1.0, wait.remaining_s))
        try:
            found.append(TCPStore(host, port, None, False, timeout, False))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=connect, name="lockstep-connect", daemon=True)
    thread.start()
    while not found:
        wait.pause(lambda: [0], hint=f"what listens at {host}:{port} has not answered as a run's rank 0 would")
    if isinstance(found[0], BaseException):
        raise PeerError(f"{wait.place}: rank 0 cannot be reached: {_first_line(found[0])}") from found[0]
    return found[0]


def _loopback(host: str) -> str | None:
    if host == "localhost":
        return "127.0.0.1"
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return None


def _first_line(error: Any) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
