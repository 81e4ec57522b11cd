"""The parts of a step's time, and what they say about a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

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
"""What a rank does by itself, and so may be slow in. (Copying counts as ``forward``, the optimizer as ``script``.)"""

_COMPUTE = ("forward", "backward", "optimizer")
_REMEDIES = {
    "data": "more loader workers (lockstep tune finds how many) or cheaper transforms help",
    "copy": "pin_memory=True in the DataLoader helps",
    "communication": "more samples a process and step help, or --accumulate",
    "logging": "a larger --log-every helps",
    "checkpoint": "a longer --checkpoint-every helps",
}
_NOTABLE = 0.15
"""A run is bound by a part other than computing if that takes at least this share of the time."""
_MOSTLY = 0.5
"""The others wait mostly for one rank if that waits for less than this share of the mean."""


def shares_of(splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each part's share of the time of all ranks, whose seconds are given. The shares add up to 1, or to 0 if all are 0."""
    totals = {part: math.fsum(split.get(part, 0.0) for split in splits) for part in PARTS}
    whole = math.fsum(totals.values())
    return {part: total / whole if whole else 0.0 for part, total in totals.items()}


def bound_of(shares: Mapping[str, float]) -> str:
    """What limits the speed: the largest part other than computing if it is notable, else ``compute``."""
    part = max((part for part in PARTS if part not in _COMPUTE), key=lambda part: shares[part])
    return part if shares[part] >= _NOTABLE else "compute"


def sentence(shares: Mapping[str, float]) -> str:
    """What limits the speed, and a remedy, for the user."""
    bound = bound_of(shares)
    if bound == "compute":
        share = sum(shares[part] for part in _COMPUTE)
        return f"compute-bound: {share:.0%} of the time goes into forward, backward and the optimizer"
    remedy = f"; {_REMEDIES[bound]}" if bound in _REMEDIES else ""
    name = {"waiting": "unbalanced", "script": "script-bound"}.get(bound, f"{bound}-bound")
    return f"{name}: {shares[bound]:.0%} of the time goes into {PARTS[bound]}{remedy}"


def verdict(splits: Sequence[Mapping[str, float]]) -> str:
    """``sentence``, with the rank that the others wait for, if it is mostly the same one.

    ``splits``: the seconds of each rank, in rank order.
    """
    shares = shares_of(splits)
    text = sentence(shares)
    waited = [split.get("waiting", 0.0) for split in splits]
    awaited = min(range(len(splits)), key=waited.__getitem__)
    if bound_of(shares) != "waiting" or waited[awaited] > _MOSTLY * math.fsum(waited) / len(waited):
        return text
    others = [split for rank, split in enumerate(splits) if rank != awaited]
    excess = {
        part: splits[awaited].get(part, 0.0) - statistics.median(split.get(part, 0.0) for split in others)
        for part in PARTS
        if part not in ("communication", "waiting")
    }
    return f"{text}, mostly for rank {awaited} and {PARTS[max(excess, key=excess.__getitem__)]}"
