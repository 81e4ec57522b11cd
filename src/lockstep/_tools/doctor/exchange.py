"""Measurements that processes make together. Every rank must call each of these functions, which
block until all have."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from lockstep._base.config import RunConfig
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.group import Transport, choose_devices, choose_transport, close_group, default_group, open_group
from lockstep._world.comm.machines import owns_gpu_exclusively
from lockstep._world.comm.store import open_store
from lockstep._world.environment import World, read_environment

_LATENCY_ROUNDS = 30
_FIRST_BYTES, _MOST_BYTES, _MOST_ON_GPU_BYTES = 1 << 18, 1 << 25, 1 << 28
_BANDWIDTH_S = 0.3
"""The expected time of an all-reduce of the large tensor, computed from that of a small one."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """This process as a member of a process group."""

    world: World
    device: torch.device
    transport: Transport
    collectives: Collectives


@contextmanager
def join(timeout_s: float) -> Iterator[Member]:
    """Open a process group as ``lockstep.join`` does, but without a run.

    Raises:
        LockstepError: see ``lockstep.join``.
    """
    environment = read_environment()
    config = replace(RunConfig.merge(environment.settings, {}), timeout_s=timeout_s)
    try:
        opened = open_store(config, environment.world)
        devices = choose_devices(config, opened.world)
        are_own = owns_gpu_exclusively(opened.world, devices, opened.store)
        transport = choose_transport(config, opened.world, devices, opened.host, are_own=are_own)
        if devices[0].type != "cpu":
            torch.accelerator.set_device_index(devices[0])
        open_group(opened, transport, devices)
        collectives = Collectives(default_group(), transport)
        try:
            yield Member(world=opened.world, device=devices[0], transport=transport, collectives=collectives)
            collectives.barrier()  # no rank closes what another still uses
        finally:
            collectives.release()
    finally:
        close_group()


def measure(member: Member) -> dict[str, Any]:
    """Measure latency (the median time of an all-reduce of one number) and bandwidth (of a large
    tensor), on the slowest rank.

    Returns:
        ``latency_s``, ``bandwidth_bytes_s``, ``num_bytes`` (of that tensor), ``world_size``,
        ``backend``, ``interface``, ``torch_gpus`` (that PyTorch sees in this process).
    """
    device = member.device if member.transport.is_on_devices else torch.device("cpu")
    number = torch.zeros(1, device=device)
    _time(number)
    latency_s = _slowest(statistics.median(_time(number) for _ in range(_LATENCY_ROUNDS)))
    small = torch.zeros(_FIRST_BYTES // 4, device=device)
    _time(small)
    small_s = _slowest(min(_time(small) for _ in range(2)))
    most_bytes = _MOST_BYTES if device.type == "cpu" else _MOST_ON_GPU_BYTES
    num_bytes = min(most_bytes, max(_FIRST_BYTES, int(_FIRST_BYTES * _BANDWIDTH_S / small_s)))
    large = torch.zeros(num_bytes // 4, device=device)
    rounds = 1 if num_bytes == _FIRST_BYTES else 3
    took_s = _slowest(min(_time(large) for _ in range(rounds)))
    return {
        "latency_s": latency_s,
        "bandwidth_bytes_s": num_bytes / took_s,
        "num_bytes": num_bytes,
        "world_size": member.collectives.size,
        "backend": member.transport.backend,
        "interface": member.transport.interface,
        "torch_gpus": torch.accelerator.device_count(),
    }


def _time(tensor: torch.Tensor) -> float:
    _wait(tensor)
    began_s = time.perf_counter()
    dist.all_reduce(tensor)
    _wait(tensor)
    return time.perf_counter() - began_s


def _wait(tensor: torch.Tensor) -> None:
    if not tensor.is_cpu:
        torch.accelerator.synchronize(tensor.device)


def _slowest(seconds: float) -> float:
    slowest = torch.tensor(seconds, dtype=torch.float64, device="cpu")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()
