"""A run's progress, speed and remaining time. Pure; ``PassMeter`` counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep._base.shapes import Count, Seconds

_BAR_WIDTH, _LEAST_BAR = 30, 5
_GAP = 2


@dataclass(kw_only=True)
class PassProgress:
    """The progress of the latest pass over a training loader, and the time of earlier epochs.

    It changes only when a step or a pass ends, so that a hanging run can be recognized.
    """

    epoch: Count
    num_epochs: Count | None
    """The number of epochs passed to ``team.epochs``; None: the script counts them itself."""
    num_steps: Count | None
    """The number of steps of the pass; None: unknown."""
    done: Count = 0
    """The finished steps of the pass, including steps before the run was interrupted."""
    since_s: Seconds | None = None
    """The time when the first step of this pass finished (it may have included the start of loader
    workers), in seconds since 1970; None: it has not."""
    until_s: Seconds | None = None
    """The time when the pass finished; None: it has not."""
    counted: Count = 0
    """The number of steps since ``since_s``."""
    num_samples: Count = 0
    """The number of samples in these steps."""
    step_s: Seconds | None = None
    """The duration of a step in the previous pass; None: there was none."""
    epoch_began_s: Seconds
    epoch_s: Seconds | None = None
    """Duration of the latest epoch run as a whole, including evaluations and checkpoints."""
    passes: Count = 1
    """Number of passes over training loaders in this epoch so far, including this one."""

    @property
    def title(self) -> str:
        """The epoch, such as ``epoch 3/10``."""
        return f"epoch {self.epoch + 1}" + (f"/{self.num_epochs}" if self.num_epochs else "")

    def as_json(self) -> dict[str, Any]:
        """Returns the progress for the black box."""
        return asdict(self)

    def step_time_s(self, now_s: float) -> float | None:
        """The time of a step, in seconds; None: not known yet."""
        elapsed_s = self._elapsed_s(now_s)
        return elapsed_s / self.counted if self.counted and elapsed_s > 0 else self.step_s

    def samples_per_s(self, now_s: float) -> float | None:
        """Samples per second in this pass; None: not known yet."""
        elapsed_s = self._elapsed_s(now_s)
        return self.num_samples / elapsed_s if self.counted and elapsed_s > 0 else None

    def left_s(self, now_s: float) -> float | None:
        """Remaining time of this pass, in seconds; None: unknown."""
        if self.until_s is not None:
            return 0.0
        step_s = self.step_time_s(now_s)
        return None if self.num_steps is None or step_s is None else max(0, self.num_steps - self.done) * step_s

    def run_left_s(self, now_s: float) -> float | None:
        """Remaining time of all epochs, in seconds; None: unknown. During the first, an epoch is
        assumed to be one pass."""
        if self.num_epochs is None:
            return None
        left_s, num_more = self.left_s(now_s), max(0, self.num_epochs - self.epoch - 1)
        if self.epoch_s is not None:
            # An epoch that lasts longer than the one before has at least the rest of its pass to
            # go.
            return max(left_s or 0.0, self.epoch_s - (now_s - self.epoch_began_s)) + num_more * self.epoch_s
        step_s = self.step_time_s(now_s)
        if left_s is None or step_s is None or self.num_steps is None or self.passes > 1:
            return None
        return left_s + num_more * self.num_steps * step_s

    def _elapsed_s(self, now_s: float) -> float:
        return 0.0 if self.since_s is None else (now_s if self.until_s is None else self.until_s) - self.since_s


def time_left(progress: PassProgress, now_s: float) -> list[str]:
    """Returns ``0:12 left``, ``3:40 for the run``: the times that are known and differ."""
    left_s, run_s = progress.left_s(now_s), progress.run_left_s(now_s)
    words = [] if left_s is None else [f"{clock(left_s)} left"]
    more = progress.num_epochs is not None and progress.num_epochs > 1
    return words if run_s is None or not more else [*words, f"{clock(run_s)} for the run"]


def clock(seconds: float) -> str:
    """Formats a duration: ``0:07``, ``1:02:03``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole >= 2 * 86400:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def bar_line(progress: PassProgress, times: Sequence[str], values: Sequence[str], width: int) -> list[tuple[str, str]]:
    """A progress bar as pieces of text with their styles. To fit, the bar is shortened first, then
    values, then times."""
    title, done, num_steps = progress.title, progress.done, progress.num_steps
    count = f"{done}/{'?' if num_steps is None else num_steps}"
    room = width - len(title) - len(count) - _GAP
    kept: list[tuple[str, str]] = []
    for text, style in [*((text, "cyan") for text in times), *((text, "") for text in values)]:
        if len(text) + _GAP > room:
            break
        kept.append((" " * _GAP + text, style))
        room -= len(text) + _GAP
    length = min(_BAR_WIDTH, room - _GAP)
    bar: list[tuple[str, str]] = []
    if num_steps and length >= _LEAST_BAR:
        full = length * min(done, num_steps) // num_steps
        bar = [
            (" " * _GAP, ""),
            ("━" * full, "green" if full == length else "magenta"),
            ("─" * (length - full), "bright_black"),
        ]
    return [(title, ""), *bar, (" " * _GAP + count, "green"), *kept]
