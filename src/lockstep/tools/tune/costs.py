"""What a step and its loader cost, and a prediction of the step time under other loader settings. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.plan.loading import Loading

_SPARE, _SPARE_OF_SPREAD = 1.1, 0.3
"""Workers are predicted slower than measured by this factor, plus this fraction of their batches' spread: a step that waits for
a long batch does not make up for it later."""
_NEAR = 1.03
"""Fewer workers are preferred unless more make steps faster by more than this factor."""
_FURTHER = 0.25
"""Cost of each further worker's start, relative to the first: they start and end in parallel, and only the fork repeats."""
_LEAST_PREFETCH, _MOST_PREFETCH = 2, 16
_MOST_WORKERS = 32


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Measured on the slowest process. Times are seconds a step."""

    step_s: float
    """On a batch that is already in memory: copy, passes, all-reduce, optimizer, and the script's own code."""
    step_cpu_s: float
    """CPU time of that, over all threads of the training process."""
    copy_s: float
    """The part of ``step_s`` that copies samples to the device."""
    fetch_s: float
    """Fetching and collating the samples, in the training process."""
    fetch_cpu_s: float
    """CPU time of that. The rest is waiting, for a disk say, and needs no core."""
    longest_fetch_s: float
    """The second longest of those that were timed."""
    fetch_spread: float
    """Their standard deviation divided by their mean."""
    worker_s: float
    """Time between two batches of one loader worker that never waits."""
    receive_s: float
    """CPU time that the training process needs to receive a batch from a worker."""
    start_s: float
    """Time to start a worker."""
    batch_bytes: int
    """Size of this process's part of a step's samples."""
    num_steps: int | None
    """In a pass; None: unknown. Workers are started for every pass."""
    cores: float
    """Available to each process of this machine."""
    room_bytes: int | None = None
    """This process's share of the shared memory through which workers hand over batches; None: unknown."""
    is_stream: bool = False
    """Whether the data set is read as one stream, in one worker at most."""
    on_gpu: bool = False

    @property
    def most_workers(self) -> int:
        """The largest number of workers to try."""
        if self.is_stream:
            return 1
        room = _MOST_WORKERS
        if self.room_bytes is not None and self.batch_bytes:
            room = int(self.room_bytes / (2 * _LEAST_PREFETCH * self.batch_bytes))
        return max(1, min(_MOST_WORKERS, room))


def predict_s(costs: Costs, workers: int) -> float:
    """Predict the time of a step with this many loader workers, including their start.

    Without workers, the loader and the step alternate. With them, the slowest of three determines the time: the step plus
    receiving its batch; the workers, each with every n-th batch; and the cores, which all of them share.
    """
    if workers == 0:
        return costs.step_s + costs.fetch_s
    overhead_s = max(0.0, costs.worker_s - costs.fetch_s)  # handing over a batch, which takes CPU time
    cpu_s = costs.step_cpu_s + costs.receive_s + costs.fetch_cpu_s + overhead_s
    spare = _SPARE + _SPARE_OF_SPREAD * costs.fetch_spread
    running_s = max(costs.step_s + costs.receive_s, spare * costs.worker_s / workers, cpu_s / costs.cores)
    starting_s = costs.start_s * (1 + _FURTHER * (workers - 1)) + costs.worker_s
    return running_s + (starting_s / costs.num_steps if costs.num_steps else 0.0)


def is_short_of_cores(costs: Costs, workers: int) -> bool:
    """Whether more workers would only wait for cores."""
    return predict_s(costs, workers + 1) >= predict_s(costs, workers) * (1 - 1e-3)


def best_workers(costs: Costs, but: int | None = None) -> int:
    """The number of workers with the fastest steps, other than ``but``; among nearly equal ones, the smallest."""
    predicted = {workers: predict_s(costs, workers) for workers in range(costs.most_workers + 1) if workers != but}
    least_s = min(predicted.values())
    return next(workers for workers, step_s in predicted.items() if step_s <= _NEAR * least_s)


def loading_with(costs: Costs, workers: int, present: Loading) -> Loading:
    """The settings with this many workers. Each prefetches enough that the longest batch does not hold up a step, as far as
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
