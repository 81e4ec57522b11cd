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


class EvaluationKeys:
    """Numbers the evaluations of a run."""

    def __init__(self) -> None:
        self._since: tuple[int, bool] = (0, False)
        self._repeats: dict[int, int] = {}

    def next(self, loader: int, step: int, *, in_step: bool) -> EvaluationKey:
        """The key of the next evaluation.

        Args:
            loader: identifies the loader within this launch (its ``id``).
            step: steps taken so far.
            in_step: whether the evaluation is inside the body of a loop over a training loader.
        """
        if (step, in_step) != self._since:
            self._since = (step, in_step)
            self._repeats.clear()
        repeat = self._repeats[loader] = self._repeats.get(loader, -1) + 1
        return EvaluationKey(step=step, number=list(self._repeats).index(loader), repeat=repeat)
