"""The parts of a step's time, and what they say about a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from operator import itemgetter

PARTS = {
    "data": "waiting for the loader",
    "copy": "copying samples to the device",
    "forward": "the forward pass and the loss",
    "backward": "the backward pass",
    "communication": "exchanging gradients",
    "waiting": "waiting for the slowest rank",
    "optimizer": "the optimizer",
    "logging": "logging",
    "checkpoint": "saving checkpoints",
    "script": "the script's other code in the loop",
}
"""What each part is spent on. They add up to the duration of a pass."""

ACTIVITIES = {
    "data": "waiting for the loader",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "script": "the script's other code in the loop",
}
"""What a rank does by itself, and so may be slow in. (Copying counts as ``forward``, the optimizer
as ``script``.)"""

Row = Sequence[float]
"""What a rank was busy with in a phase: its number of samples, the seconds of each of
``ACTIVITIES``, and their sum. (What may follow is for ``plan.balance``.)"""

LOADING = "getting a batch from the loader"
"""What a rank does between two steps of a pass, in a record."""
_BUSY = itemgetter(1 + len(ACTIVITIES))
_COMPUTE = ("forward", "backward", "optimizer")
_REMEDIES = {
    "data": "use more loader workers (lockstep tune finds how many) or cheaper transforms",
    "copy": "use pin_memory=True in the DataLoader",
    "communication": "use more samples per process and step, or --accumulate",
    "logging": "use a larger --log-every",
    "checkpoint": "use a longer --checkpoint-every",
}
_WAITS = {
    "data": "the loader",
    "copy": "copying samples to the device",
    "communication": "exchanging gradients",
    "waiting": "the slowest rank",
    "logging": "logging",
    "checkpoint": "saving checkpoints",
    "script": "the script's other code in the loop",
}
_BOUND = 0.5
"""A run is bound by what takes at least this share of the time."""
_NOTABLE = 0.15
"""The largest wait is worth a word if it takes at least this share of the time."""
_MOSTLY = 0.5
"""The others wait mostly for one rank if that waits for less than this share of the mean."""


def busy_of(rows: Sequence[Row]) -> list[float]:
    """How long each rank was busy. Called in every step, so it runs no Python code for each of
    hundreds of ranks."""
    return list(map(_BUSY, rows))


def shares_of(splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each part's share of the time of all ranks, whose seconds are given. The shares add up to 1,
    or to 0 if all are 0."""
    totals = {part: math.fsum(split.get(part, 0.0) for split in splits) for part in PARTS}
    whole = math.fsum(totals.values())
    return {part: total / whole if whole else 0.0 for part, total in totals.items()}


def bound_of(shares: Mapping[str, float]) -> str | None:
    """What takes half of the time or more: a part, or ``compute`` for all that compute; None:
    nothing does."""
    wait = max(_WAITS, key=lambda part: shares[part])
    if shares[wait] >= _BOUND:
        return wait
    return "compute" if _computing(shares) >= _BOUND else None


def name_bound(bound: str) -> str:
    """What ``bound_of`` returns, as an adjective."""
    return "unbalanced" if bound == "waiting" else f"{bound}-bound"


def notable_wait(shares: Mapping[str, float]) -> str | None:
    """The largest part other than computing, if it takes enough of the time for a remark."""
    wait = max(_WAITS, key=lambda part: shares[part])
    return wait if shares[wait] >= _NOTABLE else None


def _computing(shares: Mapping[str, float]) -> float:
    return math.fsum(shares[part] for part in _COMPUTE)


def sentence(shares: Mapping[str, float]) -> str:
    """What limits the speed, and a remedy, for the user."""
    wait = notable_wait(shares)
    if wait is None:
        bound = "compute-bound: " if bound_of(shares) == "compute" else ""
        return f"{bound}{_computing(shares):.0%} of step time is spent on forward, backward and the optimizer"
    remedy = f"; {_REMEDIES[wait]}" if wait in _REMEDIES else ""
    if bound_of(shares) != wait:
        return f"longest wait: {_WAITS[wait]}, {shares[wait]:.0%} of step time{remedy}"
    return f"{name_bound(wait)}: {shares[wait]:.0%} of step time is spent on {PARTS[wait]}{remedy}"


def verdict(splits: Sequence[Mapping[str, float]]) -> str:
    """``sentence``, with the rank that the others wait for, if it is mostly the same one.

    ``splits``: the seconds of each rank, in rank order.
    """
    shares = shares_of(splits)
    text = sentence(shares)
    waited = [split.get("waiting", 0.0) for split in splits]
    awaited = min(range(len(splits)), key=waited.__getitem__)
    if len(splits) < 2 or notable_wait(shares) != "waiting" or waited[awaited] > _MOSTLY * math.fsum(waited) / len(waited):
        return text
    others = [split for rank, split in enumerate(splits) if rank != awaited]
    excess = {
        part: splits[awaited].get(part, 0.0) - statistics.median(split.get(part, 0.0) for split in others)
        for part in PARTS
        if part not in ("communication", "waiting")
    }
    return f"{text}, mostly for rank {awaited} and {PARTS[max(excess, key=excess.__getitem__)]}"
