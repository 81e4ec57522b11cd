"""The trail of a pass, which shows whether samples that are read again are the same as before.

    trail(step) = digest(trail(step - 1) + sketch(batches of the step))

So one short string stands for all steps up to a step, in their order. A checkpoint contains only
the trail of its last step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep._base.digest import digest, sketch
from lockstep._base.errors import MismatchError
from lockstep._base.stopping import say

MAX_STEPS_AHEAD = 64
"""The number of newest steps whose trail is kept. Workers may be so many steps ahead of the
loop."""


def extend(trail: str, batches: Any) -> str:
    """Returns the trail of a pass after one more step with these global batches. At the beginning
    it is empty. Equal trails mean the same steps in the same order."""
    return digest(trail + sketch(batches))


def say_state_is_incomplete(source: object, num_steps: int) -> None:
    """Prints that a dataset has other samples than before, after its state from ``num_steps`` steps
    into a pass was restored."""
    say(
        f"{_name(source)} has other samples than before the interruption, although its state_dict() was restored. (Such states "
        f"often omit shuffle buffers.) Reading this pass again from its beginning, and skipping its first {num_steps} steps."
    )


def _name(source: object) -> str:
    kind = type(source)
    return kind.__name__ if kind.__module__ == "__main__" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def other_samples(source: object, num_steps: int) -> MismatchError:
    """Returns the error for a dataset or iterable that has other samples in the first steps of a
    pass when these are read again."""
    return MismatchError(
        f"{_name(source)} is not repeatable: read again, the first {num_steps} steps of this pass have other samples, so some "
        "samples would be used twice and others never. Do not change samples in place, and let their order depend on fixed "
        "seeds (docs/how-to/hugging-face-streams.md, webdataset.md). Then start a new run with --fresh, or accept different "
        "results with --allow data.",
        code="samples-not-repeatable",
    )


def other_indices(sampler: object, num_steps: int) -> MismatchError:
    """Returns the error for a sampler that yields other indices for the first steps of a pass when
    these are drawn again."""
    return MismatchError(
        f"{_name(sampler)} is not repeatable: drawn again, the first {num_steps} steps of this pass have other indices, so "
        "some samples would be used twice and others never. Let the order depend only on torch, numpy.random, random, the "
        "sampler's generators and attributes, or its state_dict(). Then start a new run with --fresh, or accept different "
        "results with --allow data.",
        code="indices-not-repeatable",
    )


class Trail:
    """The trail of a source that reads each pass from its beginning.

    Args:
        source: the dataset or iterable.
        is_compared: whether samples that are read again must be the same as before.
        refusal: a function that returns the error for the source and the number of different steps.
    """

    def __init__(
        self,
        source: object,
        *,
        is_compared: bool,
        refusal: Callable[[object, int], MismatchError] = other_samples,
    ) -> None:
        self._source = source
        self._is_compared = is_compared
        self._refusal = refusal
        self._behind: dict[int, str] = {}
        """The trail after each step."""
        self._num_skipped = 0
        self._last_skipped = 0
        self._was: str | None = None

    def load(self, was: str | None) -> None:
        """Sets the trail after which the next pass continues; None: it begins at its first step."""
        self._was = was

    def begin(self, first_step: int, skip: int) -> None:
        """Begins a pass whose first ``skip`` steps an earlier launch has taken."""
        self._behind = {first_step - 1: ""}
        self._num_skipped, self._last_skipped = skip, first_step + skip - 1

    def add(self, step: int, batches: Any) -> None:
        """Adds the global batches of the next step.

        Raises:
            MismatchError: it is the last of the steps to skip, and they differ from before.
        """
        trail = self._behind[step] = extend(self._behind[step - 1], batches)
        self._behind.pop(step - MAX_STEPS_AHEAD, None)
        if step == self._last_skipped:
            was, self._was = self._was, None
            if was not in (None, trail):
                self._refuse()

    def end(self) -> None:
        """Notes that the pass has no more steps.

        Raises:
            MismatchError: the pass had more steps before.
        """
        if self._was is not None:
            self._refuse()

    def behind(self, step: int | None) -> str | None:
        """Returns the trail after a step of the current pass; None: it has none. Between two passes
        it is the loaded trail."""
        return self._was if step is None else self._behind.get(step) or None

    def _refuse(self) -> None:
        if self._is_compared:
            raise self._refusal(self._source, self._num_skipped)
