"""Measurements that processes make together. Every rank must call each of these functions, which
block until all have."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._base.config import RunConfig
from lockstep._plan.rounds import equal_machines
from lockstep._sync import exact
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.group import Transport, choose_devices, choose_transport, close_group, default_group, open_group
from lockstep._world.comm.machines import owns_gpu_exclusively
from lockstep._world.comm.store import open_store
from lockstep._world.environment import World, read_environment

_LATENCY_ROUNDS = 30
_FIRST_BYTES, _MOST_BYTES, _MOST_ON_GPU_BYTES = 1 << 18, 1 << 25, 1 << 28
_BANDWIDTH_S = 0.3
"""The expected time of an exchange of the large tensor, computed from that of a small one."""


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
            hosts = collectives.all_gather_plain(opened.world.host)
            transport = replace(transport, ranks_per_machine=equal_machines(hosts))
            yield Member(world=opened.world, device=devices[0], transport=transport, collectives=collectives)
            collectives.barrier()  # no rank closes what another still uses
        finally:
            collectives.release()
    finally:
        close_group()


class GradientExchange:
    """The exchange that the strategy ``exact`` makes with gradients, with one shard per rank: over
    Gloo tagged messages, over NCCL an all-to-all and an all-gather, or on several machines of
    several GPUs each rounds of messages.

    Args:
        member: this process.
    """

    def __init__(self, member: Member) -> None:
        self.device = member.device if member.transport.is_on_devices else torch.device("cpu")
        """The device of the tensors."""
        size = member.collectives.size
        strategy = exact.make(RunConfig(), size, member.transport, (self.device,))
        assert isinstance(strategy, exact.ExactStrategy)
        self._tagged, self._ordered = strategy.exchange, strategy.on_gpus.get(self.device)
        self._roots = [[(rank, 1)] for rank in range(size)]
        self._phases = itertools.count()
        self._unit = 16 * size

    def make(self, num_bytes: int) -> Tensor:
        """Zeros of at least so many bytes, in a length that gradients may have."""
        return torch.zeros(-(-num_bytes // 4 // self._unit) * self._unit, device=self.device)

    def __call__(self, tensor: Tensor) -> None:
        """Sum a tensor over all ranks, in place. The device may still be at it afterwards."""
        if self._ordered is not None:
            self._ordered.begin_phase(self._roots)
            self._ordered.start([tensor])
            self._ordered.finish()
            return
        self._tagged.begin_step()
        self._tagged.begin_phase(next(self._phases), self._roots)
        self._tagged.start([tensor])
        self._tagged.finish()


def measure(member: Member) -> dict[str, Any]:
    """Measure latency (the median time of an exchange of some numbers) and bandwidth (of a large
    tensor), on the slowest rank.

    Returns:
        ``latency_s``, ``bandwidth_bytes_s``, ``num_bytes`` (of that tensor), ``world_size``,
        ``backend``, ``interface``, ``torch_gpus`` (that PyTorch sees in this process).
    """
    exchange = GradientExchange(member)
    numbers = exchange.make(4)
    seconds_of(exchange, numbers)
    latency_s = slowest(statistics.median(seconds_of(exchange, numbers) for _ in range(_LATENCY_ROUNDS)))
    small = exchange.make(_FIRST_BYTES)
    seconds_of(exchange, small)
    small_s = slowest(min(seconds_of(exchange, small) for _ in range(2)))
    most_bytes = _MOST_BYTES if exchange.device.type == "cpu" else _MOST_ON_GPU_BYTES
    num_bytes = min(most_bytes, max(_FIRST_BYTES, int(_FIRST_BYTES * _BANDWIDTH_S / small_s)))
    large = exchange.make(num_bytes)
    rounds = 1 if num_bytes == _FIRST_BYTES else 3
    took_s = slowest(min(seconds_of(exchange, large) for _ in range(rounds)))
    return {
        "latency_s": latency_s,
        "bandwidth_bytes_s": large.nbytes / took_s,
        "num_bytes": large.nbytes,
        "world_size": member.collectives.size,
        "backend": member.transport.backend,
        "interface": member.transport.interface,
        "torch_gpus": torch.accelerator.device_count(),
    }


def seconds_of(run: Callable[[Tensor], object], tensor: Tensor) -> float:
    """The time from a call with a tensor to the end of its work on the device."""
    _wait(tensor)
    began_s = time.perf_counter()
    run(tensor)
    _wait(tensor)
    return time.perf_counter() - began_s


def _wait(tensor: Tensor) -> None:
    if not tensor.is_cpu:
        torch.accelerator.synchronize(tensor.device)


def slowest(seconds: float) -> float:
    """The largest of all ranks' times."""
    most = torch.tensor(seconds, dtype=torch.float64, device="cpu")
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item()
