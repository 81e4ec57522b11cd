"""What a step and its loader cost, and from that how long a step will take with other settings of the loader. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.plan.loading import Loading

_SPARE, _SPARE_OF_SPREAD = 1.1, 0.3
"""Workers are reckoned so much slower than measured, and by so much of the spread of their batches: who waits for a long one
does not catch up with it."""
_NEAR = 1.03
"""Fewer workers are preferred to a step that is at most so many times as fast."""
_FURTHER = 0.25
"""The start of a further worker, in starts of the first: they begin and end side by side, and only the fork is repeated."""
_LEAST_PREFETCH, _MOST_PREFETCH = 2, 16
_MOST_WORKERS = 32


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Measured on the slowest process. Times are seconds a step."""

    step_s: float
    """On a batch that is there already: copy, passes, exchange, optimizer, and the script's own code."""
    step_cpu_s: float
    """Processor time of that, of all threads of the training process."""
    copy_s: float
    """The part of ``step_s`` that copies samples to the device."""
    fetch_s: float
    """Fetching and collating the samples, in the training process."""
    fetch_cpu_s: float
    """Processor time of that: what is left is waiting, for a disk say, and needs no core."""
    longest_fetch_s: float
    """The longest of those that were timed, but for one."""
    fetch_spread: float
    """Their standard deviation divided by their mean."""
    worker_s: float
    """Time between two batches of one loader worker that never waits."""
    receive_s: float
    """Processor time that the training process needs to receive a batch from a worker."""
    start_s: float
    """Time to start a worker."""
    batch_bytes: int
    """Of a step's samples, this process's part."""
    num_steps: int | None
    """In a pass; None: unknown. Workers are started for every pass."""
    cores: float
    """For each process of this machine."""
    room_bytes: int | None = None
    """In shared memory, through which workers hand over batches, for this process; None: unknown."""
    is_stream: bool = False
    """Whether the data set is read as one stream, in one worker at most."""
    on_gpu: bool = False

    @property
    def most_workers(self) -> int:
        """More are not tried."""
        if self.is_stream:
            return 1
        room = _MOST_WORKERS
        if self.room_bytes is not None and self.batch_bytes:
            room = int(self.room_bytes / (2 * _LEAST_PREFETCH * self.batch_bytes))
        return max(1, min(_MOST_WORKERS, room))


def predict_s(costs: Costs, workers: int) -> float:
    """How long a step will take with so many loader workers, their start included.

    Without workers, the loader and the step take turns. With them, the slowest of three decides: the step and receiving its
    batch; the workers, each with every n-th batch; and the cores, which all of them share.
    """
    if workers == 0:
        return costs.step_s + costs.fetch_s
    overhead_s = max(0.0, costs.worker_s - costs.fetch_s)  # of handing over a batch, which is work
    cpu_s = costs.step_cpu_s + costs.receive_s + costs.fetch_cpu_s + overhead_s
    spare = _SPARE + _SPARE_OF_SPREAD * costs.fetch_spread
    running_s = max(costs.step_s + costs.receive_s, spare * costs.worker_s / workers, cpu_s / costs.cores)
    starting_s = costs.start_s * (1 + _FURTHER * (workers - 1)) + costs.worker_s
    return running_s + (starting_s / costs.num_steps if costs.num_steps else 0.0)


def is_short_of_cores(costs: Costs, workers: int) -> bool:
    """Whether more workers would only wait for cores."""
    return predict_s(costs, workers + 1) >= predict_s(costs, workers) * (1 - 1e-3)


def best_workers(costs: Costs, but: int | None = None) -> int:
    """How many workers make steps quickest, of all numbers ``but`` one; of nearly equal numbers the smallest."""
    predicted = {workers: predict_s(costs, workers) for workers in range(costs.most_workers + 1) if workers != but}
    least_s = min(predicted.values())
    return next(workers for workers, step_s in predicted.items() if step_s <= _NEAR * least_s)


def loading_with(costs: Costs, workers: int, present: Loading) -> Loading:
    """The settings with so many workers: each fetches far enough ahead that the longest batch holds nobody up, as far as
    there is room in shared memory."""
    prefetch = present.prefetch or _LEAST_PREFETCH
    if workers > 0:
        step_s = max(costs.step_s, costs.worker_s / workers, 1e-6)
        wanted = math.ceil(costs.longest_fetch_s / (workers * step_s))
        room = _MOST_PREFETCH
        if costs.room_bytes is not None and costs.batch_bytes:
            room = int(costs.room_bytes / (2 * workers * costs.batch_bytes))
        prefetch = max(_LEAST_PREFETCH, prefetch, min(wanted, room, _MOST_PREFETCH))
    return Loading(workers=workers, prefetch=prefetch, pin=present.pin or costs.on_gpu)
