"""Looks up steps that are given by a name instead of a number. Pure."""

from __future__ import annotations

from lockstep.base.errors import UsageError
from lockstep.tools.replay.comparison import compare, in_words
from lockstep.tools.replay.digests import Digests
from lockstep.tools.verify.trace.lines import number

NAMES = ("nan", "worst-loss", "first-difference")


def step_with_nan(digests: Digests) -> tuple[int, str]:
    """The first step with a NaN loss, and a line about it.

    Raises:
        UsageError: there is none.
    """
    for key in sorted(digests.shards):
        if "nan" in digests.shards[key].losses:
            return key.step, f"step {key.step} is the first with a NaN: the loss of shard {key.shard}"
    raise UsageError(f"no loss in {_range(digests)} is NaN")


def step_with_worst_loss(digests: Digests) -> tuple[int, str]:
    """The step in which a shard had the largest loss, and a line about it.

    Raises:
        UsageError: no loss is known.
    """
    losses = [(number(loss), key) for key, shard in sorted(digests.shards.items()) for loss in shard.losses if loss != "nan"]
    if not losses:
        raise UsageError(f"no loss is known in {_range(digests)}")
    worst, key = max(losses, key=lambda pair: pair[0])
    return key.step, f"step {key.step} has the largest loss, {worst:.6g} in shard {key.shard}"


def step_with_first_difference(digests: Digests, against: Digests) -> tuple[int, str]:
    """The first step in which another run differs, and a line about it.

    Raises:
        UsageError: there is none, or nothing to compare.
    """
    comparison = compare(digests, against)
    if comparison.is_empty:
        raise UsageError("the digest journals of the two runs have no step in common")
    if comparison.difference is None:
        raise UsageError(f"the two runs do not differ in the steps that both journals have, up to {max(comparison.steps)}")
    return comparison.difference.step, f"the runs differ first in {in_words(comparison.difference)}"


def _range(digests: Digests) -> str:
    return f"the digest journal (steps {min(digests.steps)} to {max(digests.steps)})"
