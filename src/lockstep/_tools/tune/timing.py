"""Times the steps of a run, and how long they wait for the loader."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader
from typing_extensions import override

from lockstep._base.atomic import write_atomic
from lockstep._data.torch_loader import USUAL_PREFETCH
from lockstep._events.measure.step_clock import StepClock
from lockstep._listener import Listener, Stage

_LEAST_STEPS = 3
_SETTLING_S, _MOST_SETTLING_S = 1.0, 5.0
"""Before steps are timed, libraries choose their kernels, and what workers have fetched ahead
meanwhile is used up."""


class Timing(Listener):
    """Writes a JSON object: ``step_s``, ``wait_s`` (the part of it spent waiting for the loader),
    ``workers`` (of the first loader); or ``no_loader``, the name of what the script trains on
    instead.

    Args:
        clock: of the run's steps.
        seconds: for which steps are timed.
        path: of the file. The command ends this process once it is there.
    """

    stage = Stage.LATE

    def __init__(self, clock: StepClock, seconds: float, path: Path) -> None:
        self._clock = clock
        self._seconds = seconds
        self._path = path
        self._loaders: list[Any] = []
        self._num_steps = 0
        self._first_s = 0.0
        self._began_s: float | None = None
        """The time at which the measured steps began; None: they have not."""
        self._num_before = 0
        self._waited_s = 0.0
        """The seconds waited in finished passes, minus the wait before the measurement."""

    @override
    def prepared_loader(self, batches: Iterable[Any]) -> None:
        self._loaders.append(batches)

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._waited_s += self._clock.so_far["data"]

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        now = perf_counter()
        self._num_steps += 1
        if self._num_steps == 1:
            self._first_s = now
        if self._began_s is not None:
            count = self._num_steps - self._num_before
            if count >= _LEAST_STEPS and now - self._began_s >= self._seconds:
                wait_s = self._waited_s + self._clock.so_far["data"]
                self._write(step_s=(now - self._began_s) / count, wait_s=wait_s / count, workers=self._workers)
        elif not any(isinstance(batches, DataLoader) for batches in self._loaders):
            self._write(no_loader=type(self._loaders[0]).__name__)
        elif self._has_settled(now - self._first_s):
            self._began_s, self._num_before = now, self._num_steps
            self._waited_s = -self._clock.so_far["data"]

    @property
    def _workers(self) -> int:
        return next(int(batches.num_workers) for batches in self._loaders if isinstance(batches, DataLoader))

    def _has_settled(self, seconds: float) -> bool:
        used_up = self._num_steps >= _LEAST_STEPS + USUAL_PREFETCH * self._workers
        return seconds >= _SETTLING_S and (used_up or seconds >= _MOST_SETTLING_S)

    def _write(self, **result: Any) -> None:
        if not self._path.exists():
            write_atomic(self._path, json.dumps(result))
