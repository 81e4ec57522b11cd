"""The errors of a test of a training."""

from __future__ import annotations

from typing import Any

from lockstep._base.errors import LockstepError


class DifferenceError(LockstepError, AssertionError):
    """Two runs of a function computed different results, or the ranks of one run did. The message
    reports the first difference; the fields contain the same for programs."""

    def __init__(
        self,
        message: str,
        *,
        worlds: tuple[int, int],
        stage: str,
        step: int | None = None,
        phase: int | None = None,
        shard: int | None = None,
        samples: tuple[Any, ...] = (),
        values: tuple[str, str] = ("", ""),
        cause: str = "unknown",
        killed_at: int | None = None,
    ) -> None:
        super().__init__(message)
        self.worlds = worlds
        """The numbers of processes of the two runs; equal if the ranks of one run differ."""
        self.stage = stage
        """The kind of value that differs: ``samples``, ``loss``, ``gradient``, ``weights`` ...
        (``differences.STAGES``), or ``result``."""
        self.step = step
        """The step, from 1; 0: before the first step; None: the function's result differs."""
        self.phase = phase
        """The phase of the step, from 0; None: the step as a whole differs."""
        self.shard = shard
        """The shard; None: a value of all shards together differs."""
        self.samples = samples
        """The identities of the shard's samples."""
        self.values = values
        """The values of the two runs, as text."""
        self.cause = cause
        """The likely cause: ``chance``, ``rank``, ``rounding``, ``not saved`` (``causes.CAUSES``),
        or ``unknown``."""
        self.killed_at = killed_at
        """The number of processes on which the second run was killed before; None: it was not."""


class TimeLimitError(LockstepError, TimeoutError):
    """A test of a training took longer than its limit. The message contains the line at which each
    rank was. All processes have exited."""


for _public in (DifferenceError, TimeLimitError):
    _public.__module__ = "lockstep.testing"
