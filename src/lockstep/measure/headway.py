"""How far a run has come, at what pace, and how long it still takes. Pure; ``steps.Steps`` counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_BAR_WIDTH, _LEAST_BAR = 30, 5
_GAP = 2


@dataclass(frozen=True, kw_only=True)
class Headway:
    """What is known of the newest pass over a training loader, and of the epochs before it.

    It changes only where a step or a pass ends, so that it can be told from a run that stands still.
    """

    epoch: int
    num_epochs: int | None
    """As given to ``team.epochs``; None: the script counts them itself."""
    num_steps: int | None
    """Of the pass; None: unknown."""
    done: int
    """Steps of the pass, including those before the run was interrupted."""
    since_s: float | None
    """When the first step of this pass ended (which may have waited for loader workers to start), in seconds since 1970; None:
    it has not."""
    until_s: float | None
    """When the pass ended; None: it goes on."""
    counted: int
    """Steps since ``since_s``."""
    num_samples: int
    """Of these steps."""
    step_s: float | None
    """A step of the pass before; None: there is none."""
    epoch_began_s: float
    epoch_s: float | None
    """Of the newest epoch that was run as a whole, evaluations and checkpoints included."""
    passes: int
    """Over training loaders in this epoch, with this one."""

    def as_json(self) -> dict[str, Any]:
        """For the black box."""
        return asdict(self)

    def step_time_s(self, now_s: float) -> float | None:
        """What a step takes; None: not known yet."""
        elapsed_s = self._elapsed_s(now_s)
        return elapsed_s / self.counted if self.counted and elapsed_s > 0 else self.step_s

    def samples_per_s(self, now_s: float) -> float | None:
        """In this pass; None: not known yet."""
        elapsed_s = self._elapsed_s(now_s)
        return self.num_samples / elapsed_s if self.counted and elapsed_s > 0 else None

    def left_s(self, now_s: float) -> float | None:
        """Of this pass; None: not known."""
        if self.until_s is not None:
            return 0.0
        step_s = self.step_time_s(now_s)
        return None if self.num_steps is None or step_s is None else max(0, self.num_steps - self.done) * step_s

    def run_left_s(self, now_s: float) -> float | None:
        """Of all epochs; None: not known. In the first one that is taken for its pass over the training loader alone."""
        if self.num_epochs is None:
            return None
        left_s, num_more = self.left_s(now_s), max(0, self.num_epochs - self.epoch - 1)
        if self.epoch_s is not None:
            return max(left_s or 0.0, self.epoch_s - (now_s - self.epoch_began_s)) + num_more * self.epoch_s
        step_s = self.step_time_s(now_s)
        if left_s is None or step_s is None or self.num_steps is None or self.passes > 1:
            return None
        return left_s + num_more * self.num_steps * step_s

    def _elapsed_s(self, now_s: float) -> float:
        return 0.0 if self.since_s is None else (now_s if self.until_s is None else self.until_s) - self.since_s


def time_left(headway: Headway, now_s: float) -> list[str]:
    """``0:12 left``, ``3:40 for the run``: what is known, and differs."""
    left_s, run_s = headway.left_s(now_s), headway.run_left_s(now_s)
    words = [] if left_s is None else [f"{clock(left_s)} left"]
    more = headway.num_epochs is not None and headway.num_epochs > 1
    return words if run_s is None or not more else [*words, f"{clock(run_s)} for the run"]


def clock(seconds: float) -> str:
    """``0:07``, ``1:02:03``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole >= 2 * 86400:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def bar_line(
    title: str, done: int, num_steps: int | None, times: Sequence[str], values: Sequence[str], width: int
) -> list[tuple[str, str]]:
    """A bar in words, each with its style. Where it is too wide the bar gives way first, then the values, then the times."""
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
