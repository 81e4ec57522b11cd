"""Which evaluation of the run one is."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_LOADER = 1 << 20
"""The number under which the streams of evaluations begin; training loaders have theirs from 1."""


@dataclass(frozen=True, kw_only=True)
class EvaluationKey:
    """Which evaluation of the run one is. Its random streams start from that, and from nothing that a launch counts: a run
    that was interrupted comes to the same evaluations again."""

    step: int
    """Steps taken before."""
    number: int
    """Of its loader, among those that were evaluated since that step."""
    repeat: int = 0
    """How often that loader was evaluated before since that step."""

    @property
    def loader(self) -> int:
        """The number under which its streams are known."""
        return FIRST_LOADER + self.number


class EvaluationKeys:
    """Numbers the evaluations of a run."""

    def __init__(self) -> None:
        self._since: tuple[int, bool] = (0, False)
        self._repeats: dict[int, int] = {}

    def next(self, loader: int, step: int, *, in_step: bool) -> EvaluationKey:
        """Of the evaluation that begins now.

        Args:
            loader: tells the loaders of this launch apart.
            step: steps taken before.
            in_step: whether the body of a loop over a training loader runs.
        """
        if (step, in_step) != self._since:
            self._since = (step, in_step)
            self._repeats.clear()
        repeat = self._repeats[loader] = self._repeats.get(loader, -1) + 1
        return EvaluationKey(step=step, number=list(self._repeats).index(loader), repeat=repeat)
