"""Counts steps and samples, to show the run's progress."""

from __future__ import annotations

import time
from dataclasses import replace

from typing_extensions import override

from lockstep.journal.measure.pass_progress import PassProgress
from lockstep.listener import Listener, Stage


class StepCounter(Listener):
    """The counter of one process."""

    stage = Stage.LATE

    def __init__(self) -> None:
        self._begun: PassProgress | None = None
        """The latest pass at its beginning."""
        self._done = self._counted = self._num_samples = 0
        self._since_s: float | None = None
        self._until_s: float | None = None
        self._is_whole = False
        """Whether the current epoch was run from its beginning."""

    def progress(self) -> PassProgress | None:
        """The progress of the latest pass; None: no pass has begun. May be called from another thread."""
        if self._begun is None:
            return None
        return replace(
            self._begun,
            done=self._done,
            since_s=self._since_s,
            until_s=self._until_s,
            counted=self._counted,
            num_samples=self._num_samples,
        )

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        now_s, before = time.time(), self.progress()
        began_s, epoch_s, passes = now_s, None if before is None else before.epoch_s, 1
        if before is not None and before.epoch == epoch:
            began_s, passes = before.epoch_began_s, before.passes + 1
        else:
            if before is not None and self._is_whole:
                epoch_s = now_s - before.epoch_began_s
            self._is_whole = done == 0
        self._begun = PassProgress(
            epoch=epoch,
            num_epochs=num_epochs,
            num_steps=num_steps,
            done=done,
            since_s=None,
            until_s=None,
            counted=0,
            num_samples=0,
            step_s=None if before is None else before.step_time_s(now_s),
            epoch_began_s=began_s,
            epoch_s=epoch_s,
            passes=passes,
        )
        self._done, self._counted, self._num_samples, self._since_s, self._until_s = done, 0, 0, None, None

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        self._done += 1
        if self._since_s is None:
            self._since_s = time.time()
        else:
            self._counted += 1
            self._num_samples += num_samples

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._until_s = time.time()
