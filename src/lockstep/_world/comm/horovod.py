"""Importing and starting Horovod, and its rendezvous.

Horovod reads ranks from environment variables that ``horovodrun`` sets. If another launcher has
started the processes of one machine, they are set here while Horovod starts, and then restored. Its
processes find each other through a small HTTP server: that of ``horovodrun``, or one that rank 0
runs meanwhile on the loopback interface.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import math
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from lockstep._base.errors import ConfigError
from lockstep._world.comm.plain import all_gather_plain, broadcast_plain
from lockstep._world.environment import World

_LOOPBACK = "127.0.0.1"


def find_horovod() -> Any:
    """The module ``horovod.torch``. Local.

    Raises:
        ConfigError: it is not installed, or was built for another PyTorch.
    """
    try:
        horovod: Any = importlib.import_module("horovod.torch")
    except ImportError as error:
        raise ConfigError(
            f"strategy 'horovod' and horovodrun need Horovod, which is not installed ({error}). Its "
            "published source does not build against a current PyTorch: use `make horovod` in "
            "lockstep's repository (docs/horovod.md), or strategy='ddp', which is equal up to "
            "rounding.",
            code="horovod-missing",
        ) from error
    if not hasattr(horovod, "init"):  # it has printed the reason, and continued without
        raise ConfigError(
            "Horovod is installed, but its library does not load: it was built for another PyTorch, "
            "or without HOROVOD_WITH_PYTORCH=1. Rebuild it for this PyTorch (`make horovod` in "
            "lockstep's repository).",
            code="horovod-not-loadable",
        )
    return horovod


def start_horovod(timeout_s: float) -> Any:
    """Starts Horovod in this process, unless it is running already, and returns ``horovod.torch``.

    Every rank must call it, with the default process group open; it blocks until all have.

    Args:
        timeout_s: timeout of Horovod's communication in seconds, unless Horovod's own variable is
            set.

    Raises:
        ConfigError: Horovod is missing or was built without Gloo, or the ranks are on several
            machines, where only ``horovodrun`` can start it.
    """
    horovod = find_horovod()
    if horovod.is_initialized():
        return horovod
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts = all_gather_plain(socket.gethostname())
    if len(set(hosts)) > 1:
        raise ConfigError(
            f"strategy='horovod' on {len(set(hosts))} machines ({', '.join(sorted(set(hosts)))}), started by another launcher "
            "than horovodrun. Only horovodrun configures how they reach each other. Start the script with "
            f"`horovodrun --gloo -np {size} -H HOST:SLOTS,HOST:SLOTS python SCRIPT`, or use strategy='ddp'.",
            code="horovod-on-machines",
        )
    if not horovod.gloo_built():
        raise ConfigError(
            "Horovod was built without Gloo (HOROVOD_WITH_GLOO=1), which its processes need to "
            "communicate. Start the script with Horovod's own launcher, or rebuild it (`make "
            "horovod` in lockstep's repository).",
            code="horovod-without-gloo",
        )
    with _rendezvous_port(rank) as port:
        port = broadcast_plain(port)
        names = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0, "CROSS_SIZE": 1}
        words = {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "lo", "HOSTNAME": "localhost"}
        rendezvous = {"GLOO_RENDEZVOUS_ADDR": _LOOPBACK, "GLOO_RENDEZVOUS_PORT": str(port)}
        with _variables({**names, **words, **rendezvous, **_limits(timeout_s)}):
            horovod.init()
        dist.barrier()  # the server must run until all have connected
    return horovod


def open_store(world: World, timeout: datetime.timedelta) -> Store:
    """Opens a store on rank 0 for the rendezvous of processes started by ``horovodrun``.

    Every rank must call it; it starts Horovod, and blocks until all have. On one machine the store
    listens on the loopback interface only, on several on the interface by which ``horovodrun``
    found that they reach each other.

    Raises:
        ConfigError: Horovod is missing or does not load.
    """
    horovod = find_horovod()
    if not horovod.is_initialized():
        with _variables(_limits(timeout.total_seconds())):
            horovod.init()
    address = listener = None
    if world.rank == 0:
        held = socket.create_server((_own_address(world), 0))
        address, listener = held.getsockname()[:2], held.detach()  # the store closes it
    host, port = horovod.broadcast_object(address, root_rank=0, name="lockstep.store")
    is_server = world.rank == 0
    return TCPStore(host, port, world.world_size, is_server, timeout, wait_for_workers=False, master_listen_fd=listener)


def _own_address(world: World) -> str:
    if world.num_nodes == 1:
        return _LOOPBACK
    entries = psutil.net_if_addrs().get(os.environ.get("HOROVOD_GLOO_IFACE", ""), [])
    addresses = [entry.address for entry in entries if entry.family == socket.AF_INET]
    return addresses[0] if addresses else socket.gethostbyname(socket.gethostname())


def _limits(timeout_s: float) -> dict[str, int]:
    """The variable for Horovod's communication timeout (for a process that is suspended, or whose
    machine is deleted)."""
    name = "GLOO_TIMEOUT_SECONDS"
    return {} if f"HOROVOD_{name}" in os.environ else {name: math.ceil(timeout_s)}


@contextlib.contextmanager
def _variables(values: Mapping[str, int | str]) -> Iterator[None]:
    """A context in which Horovod's environment variables have these values."""
    named = {f"HOROVOD_{name}": str(value) for name, value in values.items()}
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _rendezvous_port(rank: int) -> Iterator[int]:
    """A context in which rank 0 runs Horovod's rendezvous server. Yields its port on rank 0, 0
    elsewhere."""
    if rank != 0:
        yield 0
        return
    http: Any = importlib.import_module("horovod.runner.http.http_server")
    # Not its RendezvousServer, which listens on all interfaces.
    server = http.RendezvousHTTPServer((_LOOPBACK, 0), http.RendezvousHandler, 0)
    thread = threading.Thread(target=server.serve_forever, name="horovod-rendezvous", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
