"""What the processes of a run share while ``lockstep tune`` measures it. Each has a session. All must take the same steps, so
they agree on every value that decides about steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch

from lockstep.joining.instrument import Run
from lockstep.tools.tune.request import TuningRequest, say_stage, write_result
from lockstep.tools.tune.tuned import Situation

T = TypeVar("T")


class Session:
    """One process's part of the measurement.

    Args:
        request: what to measure, and where to write the result.
        situation: what the measurement is valid for.
        run: that is measured.
    """

    def __init__(self, request: TuningRequest, situation: Situation, run: Run) -> None:
        self.window_s = request.window_s
        """Minimum time for which steps are timed in one window, in seconds."""
        self.on_gpu = run.devices[0].type != "cpu"
        self.cores = situation.num_cores / situation.local_world_size
        """Available to each process of this machine."""
        self.is_main = run.collectives.rank == 0
        self._device = run.devices[0]
        self._directory = Path(request.directory)
        self._situation = situation
        self._clock = run.clock
        self._collectives = run.collectives
        self._leader: object = None

    def leads(self, probe: object) -> bool:
        """Whether this is the loader to measure: the first that asked."""
        if self._leader is None:
            self._leader = probe
        return self._leader is probe

    def slowest(self, value: float) -> float:
        """The largest value of all processes. Every rank must call it."""
        return value if self._collectives.size == 1 else max(self._collectives.all_gather_plain(value))

    def agree(self, value: T) -> T:
        """Rank 0's value, a plain one. Every rank must call it."""
        agreed: T = value if self._collectives.size == 1 else self._collectives.broadcast_plain(value)
        return agreed

    def settle(self) -> None:
        """Wait for the GPU, which runs asynchronously. Local."""
        if self.on_gpu:
            torch.accelerator.synchronize(self._device)

    def split(self) -> dict[str, float]:
        """Seconds spent so far in each part of this pass's steps. Local."""
        return self._clock.so_far

    def room_bytes(self) -> int | None:
        """Shared memory for the batches of each process of this machine: half of what is free. None: there is none."""
        with contextlib.suppress(OSError):
            return shutil.disk_usage("/dev/shm").free // (2 * self._situation.local_world_size)
        return None

    def say(self, stage: str, left_s: float | None = None) -> None:
        """Tell the command what is being measured. Local."""
        if self.is_main:
            say_stage(self._directory, stage, left_s)

    def leave(self, result: dict[str, Any]) -> None:
        """Write the result for the command, which ends this process then. Local."""
        if self.is_main:
            write_result(self._directory, {"situation": dataclasses.asdict(self._situation), **result})
