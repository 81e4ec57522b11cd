"""The parts of a step's time, and what limits the speed of a run."""

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
"""The parts of a step's time, with what each is spent on. They add up to the duration of a pass."""

ACTIVITIES = {
    "data": "waiting for the loader",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "script": "the script's other code in the loop",
}
"""The activities of a rank by itself, in which it may be slow. (Copying counts as ``forward``, the
optimizer as ``script``.)"""

Row = Sequence[float]
"""The work of a rank in a phase: its number of samples, the seconds of each of ``ACTIVITIES``, and
their sum. (Further entries are for ``_plan/balance.py``.)"""

LOADING = "getting a batch from the loader"
"""The activity of a rank between two steps of a pass, in a record."""
# A row is the number of samples, the activities, and their sum at this place.
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
"""The share of the time from which on a part is what the run is bound by."""
_NOTABLE = 0.15
"""The share of the time from which on the longest wait is reported."""
_MOSTLY = 0.5
"""The others wait mostly for one rank if that rank waits for less than this share of the mean."""


def busy_of(rows: Sequence[Row]) -> list[float]:
    """Returns how long each rank was busy. Called in every step, so it runs no Python code per
    rank."""
    return list(map(_BUSY, rows))


def shares_of(splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns each part's share of the time of all ranks, from the seconds of each rank. The shares
    add up to 1, or to 0 if all are 0."""
    totals = {part: math.fsum(split.get(part, 0.0) for split in splits) for part in PARTS}
    whole = math.fsum(totals.values())
    return {part: total / whole if whole else 0.0 for part, total in totals.items()}


def bound_of(shares: Mapping[str, float]) -> str | None:
    """Returns what takes half of the time or more: a part, or ``compute`` for all parts that
    compute; None: nothing does."""
    wait = max(_WAITS, key=lambda part: shares[part])
    if shares[wait] >= _BOUND:
        return wait
    return "compute" if _computing(shares) >= _BOUND else None


def name_bound(bound: str) -> str:
    """Returns the result of ``bound_of`` as an adjective."""
    return "unbalanced" if bound == "waiting" else f"{bound}-bound"


def notable_wait(shares: Mapping[str, float]) -> str | None:
    """Returns the largest part other than computing, if it is large enough to report; None: it is
    not."""
    wait = max(_WAITS, key=lambda part: shares[part])
    return wait if shares[wait] >= _NOTABLE else None


def _computing(shares: Mapping[str, float]) -> float:
    return math.fsum(shares[part] for part in _COMPUTE)


def sentence(shares: Mapping[str, float]) -> str:
    """Describes what limits the speed, with a remedy, for the user."""
    wait = notable_wait(shares)
    if wait is None:
        bound = "compute-bound: " if bound_of(shares) == "compute" else ""
        return f"{bound}{_computing(shares):.0%} of step time is spent on forward, backward and the optimizer"
    remedy = f"; {_REMEDIES[wait]}" if wait in _REMEDIES else ""
    if bound_of(shares) != wait:
        return f"longest wait: {_WAITS[wait]}, {shares[wait]:.0%} of step time{remedy}"
    return f"{name_bound(wait)}: {shares[wait]:.0%} of step time is spent on {PARTS[wait]}{remedy}"


def verdict(splits: Sequence[Mapping[str, float]]) -> str:
    """Returns ``sentence``, with the rank that the others wait for, if it is mostly the same one.

    ``splits``: the seconds of each rank, in rank order."""
    shares = shares_of(splits)
    text = sentence(shares)
    waited = [split.get("waiting", 0.0) for split in splits]
    awaited = min(range(len(splits)), key=waited.__getitem__)
    if len(splits) < 2 or notable_wait(shares) != "waiting" or waited[awaited] > _MOSTLY * math.fsum(waited) / len(waited):
        return text
    others = [split for rank, split in enumerate(splits) if rank != awaited]
    # What this rank does for longer than the others do (their median, which another slow rank does
    # not move). The two parts left out are times that ranks cause each other.
    excess = {
        part: splits[awaited].get(part, 0.0) - statistics.median(split.get(part, 0.0) for split in others)
        for part in PARTS
        if part not in ("communication", "waiting")
    }
    return f"{text}, mostly for rank {awaited} and {PARTS[max(excess, key=excess.__getitem__)]}"
