"""The experiment that distinguishes the causes of a difference: both settings are run again, up to
its step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import Difference, first_difference
from lockstep._tools.verify.trace.traced_run import TracedRun

RunAgain = Callable[[Setting, "int | None"], TracedRun | None]
"""Runs a setting again up to a step (None: to its end); returns None if it failed."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is known about a difference."""

    difference: Difference
    settings: tuple[Setting, Setting]
    strategy: str
    repeats: bool | None = None
    """Whether each setting gives the same result when it is run again; None: unknown."""


def investigate(
    difference: Difference, reference: tuple[Setting, TracedRun], deviating: tuple[Setting, TracedRun], run: RunAgain
) -> Findings:
    """Run both again. If one fails, less is known."""
    until = None if difference.is_behind else max(difference.step, 1) + (difference.stage == "evaluation")
    pairs = dict((reference, deviating))
    differs = [
        first_difference(before, traced, until=until) is not None
        for setting, before in pairs.items()
        if (traced := run(setting, until)) is not None
    ]
    return Findings(
        difference=difference,
        settings=(reference[0], deviating[0]),
        strategy=deviating[1].start["strategy"],
        repeats=not any(differs) if differs else None,
    )
