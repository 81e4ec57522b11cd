"""The first difference between two digest journals. Pure.

A journal has the samples and losses of every step, and the content of samples, gradients and state of some. So the step of a
difference is exact if it shows in a loss; otherwise it lies between two steps whose state is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lockstep.tools.replay.digests import Digests, Shard
from lockstep.tools.verify.trace.differences import Difference, in_shard, in_step
from lockstep.tools.verify.trace.traced_run import ShardKey


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a comparison."""

    steps: tuple[int, ...]
    """Steps whose samples and losses were compared, up to the first difference."""
    states: tuple[int, ...]
    """Steps after which the state was compared, and is equal."""
    difference: Difference | None
    """The first difference; None: there is none in these steps."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to compare."""
        return not self.steps and not self.states


def compare(first: Digests, second: Digests, steps: range | None = None, tolerance: float | None = None) -> Comparison:
    """Compare two journals step by step.

    Args:
        first: a journal.
        second: another.
        steps: the steps to compare; None: all that both have.
        tolerance: the relative difference up to which losses count as equal; gradients and states are then not compared. None:
            they must be equal to the bit.
    """
    by_step = first.shards_by_step(), second.shards_by_step()
    compared, states = list[int](), list[int]()
    difference = None
    for step in sorted({*first.steps} & {*second.steps}):
        if steps is not None and step not in steps:
            continue
        mine, theirs = (shards.get(step, {}) for shards in by_step)
        compared += [step] if mine.keys() & theirs.keys() else []
        difference = next(_in_shards(mine, theirs, tolerance), None)
        if difference is None and tolerance is None and step in first.states and step in second.states:
            difference = next(iter(_after(first, second, step)), None)
            states += [step] if difference is None else []
        if difference is not None:
            break
    return Comparison(steps=tuple(compared), states=tuple(states), difference=difference)


def _in_shards(
    mine: Mapping[ShardKey, Shard], theirs: Mapping[ShardKey, Shard], tolerance: float | None
) -> Iterator[Difference]:
    """Differences between the micro-steps that both have. (The last lines of a rank that was killed are missing.)"""
    for key in [key for key in mine if key in theirs and mine[key] != theirs[key]]:
        yield from in_shard(key, mine[key].as_line(), theirs[key].as_line(), tolerance)


def _after(first: Digests, second: Digests, step: int) -> list[Difference]:
    """Differences in the gradients of a step, and in the state after it, of what both have."""
    names = [name for name in first.states[step] if name in second.states[step]]
    return in_step(first.line_of(step, names), second.line_of(step, names))


STAGES = {
    "samples": "which samples it had",
    "content": "what its samples hold",
    "loss": "its loss",
    "gradient": "the gradient after the exchange",
    "state": "the state after the step",
}


def in_words(difference: Difference) -> str:
    """A difference in one line."""
    where = f"step {difference.step}"
    where += f", shard {difference.shard}" if difference.shard is not None else ""
    where += f", phase {difference.phase + 1}" if difference.phase else ""
    name = f" ({difference.name})" if difference.name else ""
    return f"{where}: {STAGES[difference.stage]}{name}: {difference.values[0]}, and {difference.values[1]}"
