"""Keys that identify the evaluations of a run."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_LOADER = 1 << 20
"""Loader number of the first evaluation loader, for random streams; training loaders are numbered from 1."""


@dataclass(frozen=True, kw_only=True)
class EvaluationKey:
    """Identifies an evaluation within the run. Its random streams derive from this key, which counts nothing per launch, so a
    resumed run repeats the same evaluations."""

    step: int
    """Steps taken before it."""
    number: int
    """Number of its loader among those evaluated since that step."""
    repeat: int = 0
    """Number of earlier evaluations of that loader since that step."""

    @property
    def loader(self) -> int:
        """Loader number for random streams."""
        return FIRST_LOADER + self.number
