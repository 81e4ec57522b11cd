"""Opening and closing the process group of a run."""

from __future__ import annotations

import contextlib
import datetime
import gc
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import FileStore, HashStore, PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from lockstep.config import RunConfig
from lockstep.errors import ConfigError, UsageError
from lockstep.world import World

_INTERFACE = "GLOO_SOCKET_IFNAME"
_FAREWELL_S = 0.02
_openings = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """How the processes of this run reach each other."""

    backend: str
    """``gloo``, or ``nccl`` (with Gloo beside it for tensors on the CPU)."""
    interface: str
    """The network interface that Gloo listens on, as far as it was chosen here; ``auto`` if Gloo chooses."""


def choose_device(config: RunConfig, world: World) -> torch.device:
    """The device of this process: cards are given out by local rank, in turn if there are fewer than processes.

    Raises:
        ConfigError: CUDA was asked for and there is no card.
    """
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device='cuda', but PyTorch sees no CUDA card here: leave device out, or use device='cpu'")
    return torch.device("cuda", world.local_rank % torch.cuda.device_count())


def choose_meeting(config: RunConfig, world: World, device: torch.device) -> Meeting:
    """The backend and the interface: NCCL needs a card a process, and one machine never needs the network.

    Raises:
        ConfigError: NCCL was asked for where it cannot work.
    """
    card_each = device.type == "cuda" and world.local_world_size <= torch.cuda.device_count()
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if card_each and world.world_size > 1 else "gloo"
    if backend == "nccl" and not card_each:
        found = f"{torch.cuda.device_count()} cards" if device.type == "cuda" else "no card in use"
        raise ConfigError(
            f"backend='nccl' needs a card for each of the {world.local_world_size} processes of this machine, and "
            f"there is {found}: leave backend out (Gloo lets processes share a card), or start fewer processes"
        )
    on_one_machine = world.num_nodes == 1
    interface = os.environ.get(_INTERFACE) or ("lo" if on_one_machine else "auto")
    return Meeting(backend=backend, interface=interface)


@contextlib.contextmanager
def listening_on(meeting: Meeting) -> Iterator[None]:
    """Gloo devices made inside listen on the meeting's interface. (It can be told only by this variable.)"""
    before = os.environ.get(_INTERFACE)
    if meeting.interface != "auto":
        os.environ[_INTERFACE] = meeting.interface
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_INTERFACE, None)
        else:
            os.environ[_INTERFACE] = before


def open_group(config: RunConfig, world: World, meeting: Meeting, device: torch.device) -> None:
    """Open the default process group. Every rank must call it; it blocks until all have, or the timeout is over.

    A process alone opens one too, over a store in its own memory, so that code with collectives runs unchanged.
    """
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed was initialised before lockstep.join(): leave init_process_group to join(), "
            "or call join() first"
        )
    backend = "cpu:gloo,cuda:nccl" if meeting.backend == "nccl" else "gloo"
    timeout = datetime.timedelta(seconds=config.timeout_s)
    # Naming the card lets NCCL connect at once, here, where an error is easy to place; only on its own does NCCL take it.
    device_id = device if meeting.backend == "nccl" else None
    with listening_on(meeting):
        dist.init_process_group(
            backend,
            # A process that joins again must not find the addresses of its earlier group: torchrun's store outlives it.
            store=PrefixStore(f"lockstep/{next(_openings)}", _open_store(world, timeout)),
            rank=world.rank,
            world_size=world.world_size,
            timeout=timeout,
            device_id=device_id,
        )


def _open_store(world: World, timeout: datetime.timedelta) -> Store:
    """Where the ranks find each other's addresses."""
    if world.store_path is not None:
        # A file in a private directory listens on nothing, so no other host can reach it.
        return FileStore(world.store_path, world.world_size)
    if world.launcher == "python":
        return HashStore()
    store: Store
    store, _, _ = next(rendezvous("env://", world.rank, world.world_size, timeout=timeout))
    store.set_timeout(timeout)
    return store


def default_group() -> dist.ProcessGroup:
    """The process group of all ranks, which must be open."""
    group = dist.group.WORLD
    assert group is not None
    return group


def close_group() -> None:
    """Close the default process group, if it is open. Every rank should call it; it does not wait for the others.

    Gloo's threads end with the group's last reference, and PyTorch itself may keep some. A thread that still has the last
    collective's tensors to free while the interpreter shuts down brings the process down ("terminate called without an
    active exception": it wants the interpreter's lock), so they are given a moment, with the lock released.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()
        time.sleep(_FAREWELL_S)
