"""Opening and closing the process group of a run."""

from __future__ import annotations

import contextlib
import datetime
import gc
import importlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._base.errors import ConfigError, UsageError
from lockstep._world.comm.forking import guard_forks
from lockstep._world.comm.interface import GLOO_INTERFACE, choose_interface, nccl_interface
from lockstep._world.comm.peers import ranks_key, recognise
from lockstep._world.comm.store import OpenStore, leave_store
from lockstep._world.devices import accelerator, name_of
from lockstep._world.environment import World
from lockstep._world.machine.addresses import check_loopback
from lockstep._world.machine.sizes import counted

_CHANNELS = "NCCL_MAX_P2P_NCHANNELS"
_MOST_CHANNELS = "8"
CHANNELS_NOTICE = (
    f"{_CHANNELS}={_MOST_CHANNELS} is set for NCCL, whose buffers for messages between GPUs would otherwise take "
    "gigabytes of each. To choose another number, set the variable yourself"
)
_FAREWELL_S = 0.02
_LATER_S = 60.0
_ON_CPU = ("gloo", "mpi")
_key = b""
"""The key by which the ranks of the open group recognize each other."""
_waits_at_end = False
"""Whether the open group is one of devices."""
_store: Store | None = None
"""The store through which the ranks of the open group have found each other."""
_has_set_channels = False
"""Whether the open group has set the number of NCCL's channels."""


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The backend, network interface and timeout of a run's communication."""

    backend: str
    """``gloo``, ``mpi``, or that of the devices, such as ``nccl`` (with Gloo next to it for tensors
    on the CPU)."""
    interface: str
    """The network interface that Gloo listens on; ``auto`` if Gloo chooses it."""
    timeout_s: float
    """The longest wait of a collective for a rank, in seconds."""
    ranks_per_machine: int = 1
    """The number of consecutive ranks on each machine, known once the ranks have exchanged their
    host names; 1 if machines differ in it."""
    limits_channels: bool = False
    """Whether the group sets how many channels NCCL opens between two GPUs. NCCL opens them for
    all-to-alls and messages, which ``exact`` and ``fsdp`` use, and not for all-reduces. Each has
    buffers on both GPUs, outside of PyTorch's allocator."""

    @property
    def is_on_devices(self) -> bool:
        """Whether tensors on devices go from one to the other: in a fixed order, and the host does
        not wait."""
        return self.backend not in _ON_CPU

    def __str__(self) -> str:
        """The text for the first line of a run."""
        if self.backend == "nccl":
            version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
            return f"nccl {version} on {nccl_interface()}"
        return f"gloo on {self.interface}" if self.backend == "gloo" else self.backend


def choose_devices(config: RunConfig, world: World) -> tuple[torch.device, ...]:
    """Chooses the devices of this process. GPUs are assigned by local rank, and shared if there are
    fewer than processes.

    Raises:
        ConfigError: a kind of device was requested that is not here, or there are too few for
            several per process.
    """
    num_devices = config.devices_per_process
    kind = accelerator() if config.device == "auto" else config.device
    # MPS has no float64, in which buffers are combined.
    if config.device == "auto" and kind == "mps":
        kind = "cpu"
    if kind == "cpu":
        return (torch.device("cpu"),) * (num_devices or 1)
    if kind != accelerator():
        raise ConfigError(
            f"device={kind!r}, but PyTorch sees no {name_of(kind)} here. Remove device, or use device={accelerator()!r}",
            code="device-missing",
        )
    count = torch.accelerator.device_count()
    drives_all = STRATEGIES[config.strategy].devices == "all"
    num_devices = num_devices or (count if drives_all and world.world_size == 1 else 1)
    may_share = config.backend == "gloo" and not drives_all  # requested explicitly, and possible
    if num_devices > 1 and num_devices * world.local_world_size > count and not may_share:
        raise ConfigError(
            f"devices_per_process={num_devices} with {world.local_world_size} process(es) on this machine, and PyTorch sees "
            f"{count} {name_of(kind)}(s) here: ask for fewer devices or processes"
            + ("" if drives_all else ", or have them share GPUs, with backend='gloo'"),
            code="devices-too-few",
        )
    # With n devices per process, local rank r gets devices r*n to r*n + n - 1. The remainder
    # applies only to processes that share devices: 4 processes on 2 GPUs get 0, 1, 0, 1.
    return tuple(torch.device(kind, (world.local_rank * num_devices + number) % count) for number in range(num_devices))


def choose_transport(
    config: RunConfig, world: World, devices: Sequence[torch.device], host: str | None = None, *, are_own: bool
) -> Transport:
    """Chooses the backend and the interface: NCCL needs one GPU per process, and a single machine
    never needs the network.

    Args:
        host: a host that every machine of the run reaches, if one is known.
        are_own: whether no other process uses these devices (``owns_gpu_exclusively``).

    Raises:
        ConfigError: the backend cannot work here.
    """
    if config.backend == "mpi":
        _check_mpi(world)
    kind = devices[0].type
    backend = config.backend
    if backend == "auto":
        # Gloo moves tensors of CUDA, and of no other device
        wants_own = world.world_size > 1 or kind != "cuda"
        backend = dist.get_default_backend_for_device(kind) if are_own and wants_own else "gloo"
    if backend == "nccl" and not (are_own and kind == "cuda"):
        available = counted(torch.accelerator.device_count(), "GPU") if kind == "cuda" else "no GPU"
        needed = "a GPU" if len(devices) == 1 else f"{len(devices)} GPUs"
        processes = counted(world.local_world_size, "process", "processes")
        raise ConfigError(
            f"backend='nccl' needs {needed} for each process: this machine runs {processes}, with "
            f"{available} in use. Remove backend (Gloo lets processes share a GPU), or start fewer "
            "processes",
            code="backend-nccl-devices",
        )
    if backend == "gloo" and kind not in ("cpu", "cuda") and world.world_size > 1:
        raise ConfigError(
            f"backend='gloo' cannot send tensors of device {kind!r}. Remove backend and use one device "
            "for each process, or use device='cpu'",
            code="backend-gloo-device",
        )
    interface = choose_interface(on_one_machine=world.num_nodes == 1, towards=host)
    if backend == "gloo" and interface == "lo":
        check_loopback()
    exchanges_slices = world.world_size > 1 and STRATEGIES[config.strategy].promises_bits
    return Transport(
        backend=backend,
        interface=interface,
        timeout_s=config.timeout_s,
        limits_channels=backend == "nccl" and exchanges_slices and _CHANNELS not in os.environ,
    )


def _check_mpi(world: World) -> None:
    if not dist.is_mpi_available():
        raise ConfigError(
            "backend='mpi' needs a PyTorch built from source with MPI, and this one "
            f"({torch.__version__}) was not. Remove backend, or use 'gloo' (or 'nccl', with a GPU for "
            "each process): both also work under mpirun",
            code="backend-mpi-missing",
        )
    if world.launcher != "mpirun":
        raise ConfigError(
            "backend='mpi' needs processes that mpirun has started, and this one was not. Use mpirun "
            "-np N python SCRIPT, or remove backend",
            code="backend-mpi-launched",
        )


@contextlib.contextmanager
def listening_on(transport: Transport) -> Iterator[None]:
    """A context in which Gloo listens on the transport's interface. (It can be set only by an
    environment variable.)"""
    before = os.environ.get(GLOO_INTERFACE)
    if transport.interface != "auto":
        os.environ[GLOO_INTERFACE] = transport.interface
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(GLOO_INTERFACE, None)
        else:
            os.environ[GLOO_INTERFACE] = before


def open_group(opened: OpenStore, transport: Transport, devices: Sequence[torch.device]) -> None:
    """Opens the default process group. Every rank must call it; it blocks until all have, or until
    the timeout.

    A single process opens one too, over a store in its memory, so that code with collectives runs
    unchanged.

    Raises:
        StrangerError: what has connected in the place of a rank does not belong to the run.
        PeerError: a rank has exited meanwhile.
    """
    check_not_open()
    guard_forks()
    # Its functions have the group of all ranks as a default argument, which is evaluated when it is
    # imported: by any optimizer, among others. The group and its port would then outlive the run.
    importlib.import_module("torch.distributed.nn.functional")
    if transport.backend == "mpi":
        dist.init_process_group("mpi")  # MPI knows the ranks, and has no timeouts
        return
    backend = f"cpu:gloo,{devices[0].type}:{transport.backend}" if transport.is_on_devices else "gloo"
    # With device_id NCCL connects at once, so errors appear here; only possible with one device per
    # process, since a group with a device_id refuses tensors on other devices.
    device_id = devices[0] if transport.is_on_devices and len(devices) == 1 else None
    global _key, _waits_at_end, _store, _has_set_channels
    # Until the group closes: NCCL reads it when it connects, which may be later without device_id.
    if transport.limits_channels:
        os.environ[_CHANNELS], _has_set_channels = _MOST_CHANNELS, True
    _key, _waits_at_end, _store = ranks_key(opened.store), transport.is_on_devices, opened.store
    with listening_on(transport):
        dist.init_process_group(
            backend,
            store=opened.store,
            rank=opened.world.rank,
            world_size=opened.world.world_size,
            timeout=datetime.timedelta(seconds=transport.timeout_s),
            device_id=device_id,
        )
    if transport.is_on_devices:
        _outlast(default_group(), transport.timeout_s, devices[0])
    recognise(_key, default_group())


def _outlast(group: dist.ProcessGroup, timeout_s: float, device: torch.device) -> None:
    """Gives the devices' collectives of a group more time than Gloo's.

    NCCL's watchdog ends the process without a word to Python. Every step also exchanges numbers
    over Gloo, whose timeout is an error that names the rank that is missing: that has to come
    first. (``init_process_group`` has one timeout for both, and PyTorch no public call for one of
    them.)
    """
    # NCCL's has it
    set_timeout = getattr(group._get_backend(device), "_set_default_timeout", None)
    if set_timeout is not None:
        set_timeout(datetime.timedelta(seconds=2 * timeout_s + _LATER_S))


def open_sub_group(ranks: Sequence[int], transport: Transport, backend: str | None = None) -> dist.ProcessGroup:
    """Opens a group of some ranks. *Every* rank of the run must call it; only the members wait for
    each other.

    (``use_local_synchronization`` would spare the others, but names a group after the number of
    groups that a process is in. Once some rank was not in a group, ranks look for each other under
    different names until the timeout.)

    Args:
        ranks: the members; within the group they are numbered in ascending order.
        backend: None: the run's.
    """
    with listening_on(transport):
        timeout = datetime.timedelta(seconds=transport.timeout_s)
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=timeout, backend=backend)
    if dist.get_rank() in ranks and transport.backend != "mpi":
        if transport.is_on_devices and backend is None:
            _outlast(group, transport.timeout_s, torch.device(accelerator()))
        recognise(_key, group)
    return group


def check_not_open() -> None:
    """Checks that no process group is open in this process.

    Raises:
        UsageError: one is.
    """
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed was initialized before lockstep.join(), by the script or its host (as "
            "Ray Train does). Let join() initialize it: remove init_process_group, or call "
            "torch.distributed.destroy_process_group() before join()",
            code="group-already-open",
        )


def default_group() -> dist.ProcessGroup:
    """The process group of all ranks. It must be open."""
    group = dist.group.WORLD
    assert group is not None
    return group


def group_store() -> Store | None:
    """The store through which the ranks of the open group have found each other; None: they have
    none, as under MPI."""
    return _store


def close_group(*, failed: bool = False) -> None:
    """Closes the default process group, if it is open. Every rank should call it. Gloo's does not
    wait for the others; NCCL's does, since communicators are destroyed together.

    After a failure the others may never come: this process would wait for them until the timeout,
    and its error would not be reported meanwhile. So a group on devices stays open, and ends
    with the process.

    Gloo's threads end with the group's last reference, of which PyTorch may keep some. A thread
    that frees the last collective's tensors while the interpreter shuts down aborts the process
    ("terminate called without an active exception", since it needs the interpreter's lock), so they
    get a moment with the lock released.
    """
    global _store, _has_set_channels
    _store = None
    if _has_set_channels:
        os.environ.pop(_CHANNELS, None)
        _has_set_channels = False
    if dist.is_initialized() and not (failed and _waits_at_end and dist.get_world_size() > 1):
        dist.destroy_process_group()
        gc.collect()
        time.sleep(_FAREWELL_S)
    leave_store()
