"""Collectives that do not belong together."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from faults.moments import AFTER_STEP, IN_FORWARD, ON_ALL_RANKS, at

GROUPS: list[dist.ProcessGroup] = []
"""Two, of all ranks."""
OTHERS: list[dist.ProcessGroup] = []
"""One, of all ranks but the culprit."""


def make_groups(culprit: int) -> None:
    """Called on all ranks."""
    GROUPS.extend(dist.new_group() for _ in range(2))
    OTHERS.append(dist.new_group([rank for rank in range(dist.get_world_size()) if rank != culprit]))


# One rank calls what the others do not


@at(IN_FORWARD)
def average_by_hand() -> None:
    dist.all_reduce(torch.zeros(7))


@at(IN_FORWARD)
def receive_weights() -> None:
    """Waits for a message that no rank sends."""
    dist.recv(torch.zeros(7), src=(dist.get_rank() + 1) % dist.get_world_size())


@at(AFTER_STEP)
def make_group() -> None:
    """A group for the ranks that save, say: all ranks would have to call it."""
    dist.new_group([0, 1])


@at(AFTER_STEP)
def make_mesh() -> None:
    """Of two dimensions, for four ranks: it makes groups."""
    init_device_mesh("cpu", (2, dist.get_world_size() // 2))


@at(AFTER_STEP)
def check_all_are_here() -> None:
    dist.monitored_barrier()


@at(AFTER_STEP)
def gather_objects() -> None:
    metrics: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(metrics, {"accuracy": 0.5})


@at(AFTER_STEP)
def wrap_again() -> None:
    """The constructor compares the ranks' models."""
    DistributedDataParallel(nn.Linear(2, 2))


@at(AFTER_STEP)
def evaluate_alone() -> None:
    """One rank evaluates, and its metrics are averaged over all ranks."""
    metrics = torch.zeros(2)
    dist.all_reduce(metrics)
    metrics.div_(dist.get_world_size())


# All ranks call something in the same step, of which one calls something else


@at(ON_ALL_RANKS)
def count_samples(is_culprit: bool) -> None:
    """Equally many bytes, of another type."""
    dist.all_reduce(torch.tensor([16], dtype=torch.int32) if is_culprit else torch.tensor([16.0]))


@at(ON_ALL_RANKS)
def take_maximum(is_culprit: bool) -> None:
    """The others add."""
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if is_culprit else dist.ReduceOp.SUM)


@at(ON_ALL_RANKS)
def reduce_longer(is_culprit: bool) -> None:
    dist.all_reduce(torch.ones(10 if is_culprit else 8))


@at(ON_ALL_RANKS)
def gather_last_batch(is_culprit: bool) -> None:
    """Predictions, of fewer samples on one rank."""
    predictions = torch.ones(3 if is_culprit else 5)
    dist.all_gather([torch.empty_like(predictions) for _ in range(dist.get_world_size())], predictions)


@at(ON_ALL_RANKS)
def broadcast_instead(is_culprit: bool) -> None:
    if is_culprit:
        dist.broadcast(torch.ones(4), src=0)
    else:
        dist.all_reduce(torch.ones(4))


@at(ON_ALL_RANKS)
def gather_instead(is_culprit: bool) -> None:
    if is_culprit:
        dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size())], torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4))


@at(ON_ALL_RANKS)
def broadcast_own(is_culprit: bool) -> None:
    """One rank takes itself for the source."""
    dist.broadcast(torch.ones(4), src=dist.get_rank() if is_culprit else _next_to_culprit())


@at(ON_ALL_RANKS)
def reduce_to_own(is_culprit: bool) -> None:
    """One rank takes itself for the destination."""
    dist.reduce(torch.ones(4), dst=dist.get_rank() if is_culprit else _next_to_culprit())


@at(ON_ALL_RANKS)
def reduce_by_group(is_culprit: bool) -> None:
    """In two groups, in another order."""
    first, second = GROUPS
    for group in (second, first) if is_culprit else (first, second):
        dist.all_reduce(torch.zeros(4), group=group)


@at(ON_ALL_RANKS)
def leave_out_group(is_culprit: bool) -> None:
    """One rank never comes to a group's collective."""
    if not is_culprit:
        dist.all_reduce(torch.zeros(4), group=GROUPS[0])


def _next_to_culprit() -> int:
    return (int(sys.argv[2]) + 1) % dist.get_world_size()
