"""Looks up steps by a name instead of a number. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep._base.errors import UsageError
from lockstep._tools.replay.digests import Digests
from lockstep._tools.verify.trace.lines import number
from lockstep._tools.verify.trace.traced_run import ShardKey

NAMES = ("nan", "worst-loss")


def step_with_nan(digests: Digests) -> tuple[int, str]:
    """The first step with a NaN loss, and a line about it.

    Raises:
        UsageError: there is none.
    """
    for loss, key in _losses(digests):
        if loss == "nan":
            return key.step, f"step {key.step} is the first with a NaN: the loss of {key.name}"
    raise UsageError(f"no loss in {_range(digests)} is NaN", code="no-nan")


def step_with_worst_loss(digests: Digests) -> tuple[int, str]:
    """The step in which a shard had the largest loss, and a line about it.

    Raises:
        UsageError: no loss is known.
    """
    losses = [(number(loss), key) for loss, key in _losses(digests) if loss != "nan"]
    if not losses:
        raise UsageError(f"{_range(digests)} contains no losses", code="no-losses")
    worst, key = max(losses, key=lambda pair: pair[0])
    return key.step, f"step {key.step} has the largest loss, {worst:.6g} in {key.name}"


def _range(digests: Digests) -> str:
    return f"the digest journal (steps {digests.numbers()[0]} to {digests.numbers()[-1]})"


def _losses(digests: Digests) -> Iterator[tuple[str, ShardKey]]:
    """All losses in order, as the journal has them."""
    for step in digests.numbers():
        for key, ((_, line),) in digests.shards_of(step):
            yield from ((loss, key) for loss in line["losses"])
