"""The first step in which two digest journals differ, and what was compared. Pure.

Samples and losses stand there for every step, what samples hold, gradients and state for some. So the step of a difference is
exact if it shows in a loss, and else lies between two steps whose state is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.replay.digests import NOTHING, Digests, Shard
from lockstep.trace.differences import Difference
from lockstep.trace.lines import number
from lockstep.trace.traced_run import ShardKey


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of it."""

    steps: tuple[int, ...]
    """Those whose samples and losses were compared, up to the first difference."""
    states: tuple[int, ...]
    """Those after which the state was compared, and equal."""
    difference: Difference | None
    """None: none was found in them."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to compare."""
        return not self.steps and not self.states


def compare(first: Digests, second: Digests, steps: range | None = None, tolerance: float | None = None) -> Comparison:
    """Compare two journals step by step.

    Args:
        one: a journal.
        two: another.
        steps: only these; None: all that both know.
        tolerance: losses are equal up to this, relatively, and gradients and states are not compared; None: to the bit.
    """
    known = sorted(set(first.steps) & set(second.steps))
    shards: tuple[dict[int, dict[ShardKey, Shard]], ...] = tuple({step: {} for step in known} for _ in range(2))
    for by_step, digests in zip(shards, (first, second), strict=True):
        for key, shard in sorted(digests.shards.items()):
            if key.step in by_step:
                by_step[key.step][key] = shard
    compared: list[int] = []
    states: list[int] = []
    for step in known:
        if steps is not None and step not in steps:
            continue
        mine, theirs = (by_step[step] for by_step in shards)
        compared += [step] if mine.keys() & theirs.keys() else []
        differences = _in_shards(mine, theirs, tolerance)
        if (difference := next(differences, None)) is not None:
            return Comparison(steps=tuple(compared), states=tuple(states), difference=difference)
        if tolerance is None and step in first.states and step in second.states:
            if (difference := next(_after(first, second, step), None)) is not None:
                return Comparison(steps=tuple(compared), states=tuple(states), difference=difference)
            states.append(step)
    return Comparison(steps=tuple(compared), states=tuple(states), difference=None)


def _in_shards(mine: dict[ShardKey, Shard], theirs: dict[ShardKey, Shard], tolerance: float | None) -> Iterator[Difference]:
    """Differences between the micro-steps that both have. (Of a rank that was killed the last lines are missing.)"""
    for key in [key for key in mine if key in theirs]:
        ours, counterpart = mine[key], theirs[key]
        at = functools.partial(Difference, step=key.step, phase=key.phase, shard=key.shard)
        if ours.samples != counterpart.samples:
            yield at(stage="samples", values=(f"digest {ours.samples}", f"digest {counterpart.samples}"))
        elif NOTHING not in (ours.content, counterpart.content) and ours.content != counterpart.content:
            yield at(stage="content", values=(f"digest {ours.content}", f"digest {counterpart.content}"))
        elif not _are_equal(ours.losses, counterpart.losses, tolerance):
            yield at(stage="loss", values=(_decimals(ours.losses), _decimals(counterpart.losses)))


def _after(first: Digests, second: Digests, step: int) -> Iterator[Difference]:
    pairs = zip(first.gradients.get(step, ()), second.gradients.get(step, ()), strict=False)
    for phase, (mine, theirs) in enumerate(pairs):
        if mine.digest != theirs.digest:
            values = tuple(f"digest {g.digest}, norm {number(g.norm):.6g}" for g in (mine, theirs))
            yield Difference(step=step, phase=phase, stage="gradient", values=(values[0], values[1]))
    states = first.states[step], second.states[step]
    for owner in [owner for owner in states[0] if owner in states[1]]:
        if states[0][owner] != states[1][owner]:
            values = tuple(f"digest {state[owner]}" for state in states)
            yield Difference(step=step, stage="state", name=owner, values=(values[0], values[1]))


def _are_equal(ours: tuple[str, ...], theirs: tuple[str, ...], tolerance: float | None) -> bool:
    if ours == theirs or tolerance is None:
        return ours == theirs
    pairs = [(number(a), number(b)) for a, b in zip(ours, theirs, strict=False)]
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=tolerance) or a == b or (a != a and b != b) for a, b in pairs
    )


def _decimals(losses: tuple[str, ...]) -> str:
    return " and ".join(repr(number(loss)) for loss in losses) or "none"


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
