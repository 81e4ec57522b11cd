"""Follows passes over training loaders: counts their steps, for the display, and measures what they
use, without warm-up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from lockstep._events.measure.pass_progress import PassProgress
from lockstep._events.measure.split import bound_of, notable_wait, shares_of, verdict
from lockstep._events.measure.usage import Usage, gpus_in_use
from lockstep._events.writer import EventWriter
from lockstep._listener import Listener, Stage
from lockstep._world import devices
from lockstep._world.comm.collectives import Collectives

_WARM_UP_STEPS = 10
"""The steps of a launch, or half of a shorter first pass, in which libraries choose their kernels,
buffers are allocated and loader workers start."""
_PRINTED_S = 1.0
_FEWEST_STEPS = 20
"""The fewest steps of a pass after which what bounds its speed is printed, if the pass was left
early."""


class PassMeter(Listener):
    """A listener that follows every pass of this process, and writes the measurements of all ranks
    to the event log.

    Args:
        split: returns the seconds of each part of the current pass (``split.PARTS``).
        speaks: whether to print what bounds the speed, after the first pass and when it changes.
    """

    stage = Stage.LATE

    def __init__(
        self, events: EventWriter, collectives: Collectives, split: Callable[[], dict[str, float]], *, speaks: bool
    ) -> None:
        self.progress: PassProgress | None = None
        """The progress of the latest pass; None: none has begun. May be read by another thread."""
        self._events = events
        self._collectives = collectives
        self._split = split
        self._speaks = speaks
        self._said: set[tuple[str | None, str | None]] = set()
        self._is_whole = False
        """Whether the current epoch was run from its beginning."""
        self._num_steps = self._num_samples = 0
        """The steps and samples of the current pass in this launch."""
        self._warm_up = 0
        """The number of warm-up steps of the current pass; 0: none."""
        self._warm = 0, 0
        """The steps and samples of the warm-up, once it has finished."""
        self._began_s = 0.0
        self._usage: Usage | None = None
        """The resource usage since the warm-up; None: no pass is running."""
        self._over: list[tuple[dict[str, Any], bool]] = []
        """The fields of the ``epoch`` events of finished passes, for this process only, and whether
        each pass is long enough for a verdict."""

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        now_s, before = time.time(), self.progress
        now = PassProgress(epoch=epoch, num_epochs=num_epochs, num_steps=num_steps, done=done, epoch_began_s=now_s)
        if before is not None:
            now.step_s, now.epoch_s = before.step_time_s(now_s), before.epoch_s
        if before is not None and before.epoch == epoch:
            now.epoch_began_s, now.passes = before.epoch_began_s, before.passes + 1
        else:
            if before is not None and self._is_whole:
                now.epoch_s = now_s - before.epoch_began_s
            self._is_whole = done == 0
        self.progress = now
        longest = _WARM_UP_STEPS if num_steps is None else min(_WARM_UP_STEPS, (num_steps - done) // 2)
        # Only in the first pass of a launch: kernels are chosen and buffers allocated once.
        self._warm_up = longest if before is None else 0
        self._num_steps = self._num_samples = 0
        self._warm = 0, 0
        self._began_s = time.perf_counter()
        self._usage = Usage()

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        progress = self.progress
        assert progress is not None
        progress.done += 1
        if progress.since_s is None:
            progress.since_s = time.time()
        else:
            progress.counted += 1
            progress.num_samples += num_samples
        self._num_steps += 1
        self._num_samples += num_samples
        if self._num_steps == self._warm_up:
            self._end_warm_up()

    def _end_warm_up(self) -> None:
        """Starts the measurement."""
        # Kernels that were submitted in the warm-up belong to it.
        _wait_for_gpu()
        assert self._usage is not None
        self._usage.end()
        self._warm = self._num_steps, self._num_samples
        self._usage = Usage()

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        progress, usage, self._usage = self.progress, self._usage, None
        if progress is None or usage is None:
            return
        progress.until_s = time.time()
        _wait_for_gpu()
        used, split = usage.end(), self._split()
        if self._num_steps < self._warm_up:  # it was left, or was shorter than expected
            self._warm = self._num_steps, self._num_samples
            used |= {"wall_s": 0.0, "cpu_s": 0.0}
        is_telling = time.perf_counter() - self._began_s >= _PRINTED_S and (exhausted or self._num_steps >= _FEWEST_STEPS)
        ended = {
            "epoch": progress.epoch,
            "step": step,
            "num_steps": self._num_steps,
            "num_samples": self._num_samples,
            "steady_steps": self._num_steps - self._warm[0],
            "steady_samples": self._num_samples - self._warm[1],
            "steady_s": used["wall_s"],
            # Its `wall_s` is `steady_s`, and is replaced by the time of the whole pass.
            **used,
            "wall_s": time.perf_counter() - self._began_s,
            "split": split,
        }
        self._over.append((ended, is_telling))

    @override
    def flush(self) -> None:
        # Not at the end of a pass, which is an event in which a listener may not communicate.
        over, self._over = self._over, []
        for ended, is_telling in over:
            event = merge_passes(self._collectives.all_gather_plain(ended))
            shares = shares_of(event["split"])
            event["bound"] = bound_of(shares)
            self._events.write("epoch", **event)
            seen = (event["bound"], notable_wait(shares))
            if self._speaks and is_telling and seen not in self._said:
                self._said.add(seen)
                # On standard error: the script's own output may be compared with that of another
                # run.
                print(f"lockstep: epoch {event['epoch'] + 1}: {verdict(event['split'])}", file=sys.stderr, flush=True)


def _wait_for_gpu() -> None:
    module = devices.in_use()
    for gpu in () if module is None else gpus_in_use(module):
        torch.accelerator.synchronize(gpu)  # kernels run asynchronously


def merge_passes(by_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges the measurements of all ranks into one event: rank 0's times, and the resource usage
    as lists by rank."""
    merged = dict(by_rank[0])
    for name in ("cpu_s", "peak_rss_bytes", "peak_gpu_bytes", "gpu_utilisation", "split"):
        values = [fields[name] for fields in by_rank]
        merged[name] = None if all(value is None for value in values) else values
    return merged
