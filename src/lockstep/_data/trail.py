"""The trail of a pass: whether what is read again after a resume is what was read before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep._base.digest import digest, sketch
from lockstep._base.errors import MismatchError
from lockstep._base.stopping import say

MAX_STEPS_AHEAD = 64
"""The number of newest steps behind which the trail is known: by so many may workers be ahead of
the loop."""


def extend(trail: str, batches: Any) -> str:
    """The trail of a pass behind one more step with these global batches; at its beginning it is
    empty. Equal trails: the same steps in the same order."""
    return digest(trail + sketch(batches))


def say_state_is_incomplete(source: object, num_steps: int) -> None:
    """Say that a data set, behind the state that it gave ``num_steps`` steps into a pass, has other
    samples than it had."""
    say(
        f"{_name(source)} has not come back to where it was: behind the state that it gave (state_dict) it has other samples "
        "than before the run was interrupted. (Shuffle buffers are often left out of such states.) So this pass is read again "
        f"from its beginning, without using the first {num_steps} steps."
    )


def _name(source: object) -> str:
    kind = type(source)
    return kind.__name__ if kind.__module__ == "__main__" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def other_samples(source: object, num_steps: int) -> MismatchError:
    """The error for a data set or iterable that, read from the beginning of a pass, has other
    samples in its first steps."""
    return MismatchError(
        f"{_name(source)} does not repeat itself: read again, the first {num_steps} steps of this pass have other samples than "
        "before the run was interrupted. If it went on, some samples would be used twice and others never. Write to no "
        "sample in place, and let their order depend on fixed seeds alone: `.shuffle(seed=0, buffer_size=1000)` of a "
        "Hugging Face stream, `.shuffle(1000, rng=random)` of a WebDataset (see docs/how-to/hugging-face-streams.md and "
        "webdataset.md). Then start a new run with --fresh. Or resume this one, with a different answer: --allow data."
    )


def other_indices(sampler: object, num_steps: int) -> MismatchError:
    """The error for a sampler that, asked again from the beginning of a pass, has other indices for
    its first steps."""
    return MismatchError(
        f"{_name(sampler)} does not repeat itself: asked again, it gives other indices for the first {num_steps} steps of this "
        "pass than before the run was interrupted. If it went on, some samples would be used twice and others never. What "
        "its order depends on must come back with the run: numbers drawn from torch, numpy.random or random, its own "
        "generators and attributes, and its state_dict() do; a list outside of it that it shuffles in place, the time, or "
        "values that the script computes do not. Mend that, and start a new run with --fresh. Or resume this one, with a "
        "different answer: --allow data."
    )


class Trail:
    """The trail of a source that reads each pass from its beginning.

    Args:
        source: the data set or iterable.
        is_compared: whether what is read again must be what was read before.
        refusal: makes the error for the source and the number of steps that are others.
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
        """By step."""
        self._num_skipped = 0
        self._last_skipped = 0
        self._was: str | None = None

    def load(self, was: str | None) -> None:
        """The next pass goes on behind steps with this trail; None: behind none."""
        self._was = was

    def begin(self, first_step: int, skip: int) -> None:
        """Begin a pass whose first ``skip`` steps an earlier launch has taken."""
        self._behind = {first_step - 1: ""}
        self._num_skipped, self._last_skipped = skip, first_step + skip - 1

    def add(self, step: int, batches: Any) -> None:
        """These are the global batches of the next step.

        Raises:
            MismatchError: it is the last of the steps to skip, and they are others than before.
        """
        trail = self._behind[step] = extend(self._behind[step - 1], batches)
        self._behind.pop(step - MAX_STEPS_AHEAD, None)
        if step == self._last_skipped:
            was, self._was = self._was, None
            if was not in (None, trail):
                self._refuse()

    def end(self) -> None:
        """The pass has no more steps.

        Raises:
            MismatchError: it had more before.
        """
        if self._was is not None:
            self._refuse()

    def behind(self, step: int | None) -> str | None:
        """The trail behind a step of the current pass; None: it has none. Between two passes: the
        one that was loaded."""
        return self._was if step is None else self._behind.get(step) or None

    def _refuse(self) -> None:
        if self._is_compared:
            raise self._refusal(self._source, self._num_skipped)
