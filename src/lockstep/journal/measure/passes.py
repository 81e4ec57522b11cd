"""Times passes over training loaders and measures their use of resources, without warm-up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from lockstep.journal.measure.journal import Journal
from lockstep.journal.measure.split import bound_of, notable_wait, shares_of, verdict
from lockstep.journal.measure.usage import Usage, UsageMeter, gpus_in_use
from lockstep.listener import Listener, Stage
from lockstep.world import devices
from lockstep.world.comm.collectives import Collectives

_WARM_UP_STEPS = 10
_PRINTED_S = 1.0
"""For shorter passes, what bounds their speed is not printed."""


class Pass:
    """A pass from its first step to its last, on this process.

    Args:
        epoch: number of the pass.
        num_steps: its length, if known.
        warm_up: exclude the first steps (10, or half of a shorter pass), in which libraries choose their kernels,
            buffers are allocated and loader workers start.
    """

    def __init__(self, epoch: int, num_steps: int | None, *, warm_up: bool) -> None:
        self._epoch = epoch
        self.num_steps = self.num_samples = 0
        """Those so far."""
        longest = _WARM_UP_STEPS if num_steps is None else min(_WARM_UP_STEPS, num_steps // 2)
        self.warm_up = longest if warm_up else 0
        """Steps after which the warm-up is over; 0: there is none."""
        self._warm_steps = 0
        self._warm_samples = 0
        self._wall_s = 0.0
        self._step = 0
        self._usage: Usage | None = None
        self._meter = UsageMeter()
        self._began = time.perf_counter()
        self._meter.start()

    def end_warm_up(self) -> None:
        """Measure from here."""
        _wait_for_gpu()
        self._warm_steps, self._warm_samples = self.num_steps, self.num_samples
        self._meter.start()

    def end(self, step: int, split: Callable[[], dict[str, float]]) -> None:
        """The pass has ended, after this step of the run. ``split`` returns how its time was spent."""
        self._step = step
        _wait_for_gpu()
        self._usage = self._meter.stop()
        self._split = split()
        self._wall_s = time.perf_counter() - self._began

    def result(self) -> dict[str, Any]:
        """The fields of an ``epoch`` event, for this process alone."""
        usage = self._usage
        assert usage is not None
        return {
            "epoch": self._epoch,
            "step": self._step,
            "num_steps": self.num_steps,
            "num_samples": self.num_samples,
            "wall_s": self._wall_s,
            "steady_steps": self.num_steps - self._warm_steps,
            "steady_samples": self.num_samples - self._warm_samples,
            "steady_s": usage.wall_s,
            "cpu_s": usage.cpu_s,
            "peak_rss_bytes": usage.peak_rss_bytes,
            "peak_gpu_bytes": usage.peak_gpu_bytes,
            "gpu_utilisation": usage.gpu_utilisation,
            "split": self._split,
        }


class Meter(Listener):
    """Measures every pass of this process, and writes the measurements of all ranks to the journal.

    Args:
        journal: of the run.
        collectives: of all ranks.
        split: returns the seconds of each part of the current pass (``explain.split``).
        speaks: whether to print what bounds the speed, after the first pass and when that is something new.
    """

    stage = Stage.LATE

    def __init__(
        self, journal: Journal, collectives: Collectives, split: Callable[[], dict[str, float]], speaks: bool
    ) -> None:
        self._journal = journal
        self._collectives = collectives
        self._split = split
        self._speaks = speaks
        self._said: set[tuple[str | None, str | None]] = set()
        self._pass: Pass | None = None
        self._is_first = True
        self._over: list[Pass] = []

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._pass = Pass(epoch, None if num_steps is None else num_steps - done, warm_up=self._is_first)
        self._is_first = False

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        current = self._pass
        if current is not None:
            current.num_steps += 1
            current.num_samples += num_samples
            if current.num_steps == current.warm_up:
                current.end_warm_up()

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        if self._pass is not None:
            self._pass.end(step, self._split)
            self._over.append(self._pass)
            self._pass = None

    @override
    def flush(self) -> None:
        over, self._over = self._over, []
        for ended in over:
            event = merge_passes(self._collectives.all_gather_plain(ended.result()))
            shares = shares_of(event["split"])
            event["bound"] = bound_of(shares)
            self._journal.write("epoch", **event)
            seen = (event["bound"], notable_wait(shares))
            if self._speaks and seen not in self._said and event["wall_s"] >= _PRINTED_S:
                self._said.add(seen)
                # On standard error: the script's own output may be compared with that of another run.
                print(f"lockstep: epoch {event['epoch'] + 1}: {verdict(event['split'])}", file=sys.stderr, flush=True)


def _wait_for_gpu() -> None:
    module = devices.in_use()
    for gpu in () if module is None else gpus_in_use(module):
        torch.accelerator.synchronize(gpu)  # kernels run asynchronously


def merge_passes(by_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the measurements of all ranks into one event: rank 0's times, and the use of resources as lists by rank."""
    merged = dict(by_rank[0])
    for name in ("cpu_s", "peak_rss_bytes", "peak_gpu_bytes", "gpu_utilisation", "split"):
        values = [fields[name] for fields in by_rank]
        merged[name] = None if all(value is None for value in values) else values
    return merged
