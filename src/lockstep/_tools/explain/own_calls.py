"""What lockstep's collectives do for the user. A user who debugs a hang cannot know what
``all_gather`` number 41 is, so a report names the work that the collective belongs to."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from lockstep._base.tracebacks.frames import OURS, Frame, owner
from lockstep._tools.explain.frames import is_between

VIA = "lockstep: "
"""The beginning of what stands for the calling function where lockstep itself has made a call."""
PURPOSES = {
    "_sync/start.py": "the copy of the model from rank 0",
    "_sync/norms.py": "gradient clipping",
    "_sync/": "the exchange of gradients",
    "_loop/exchange.py": "the exchange of gradients",
    "_loop/preparing.py": "the copy of the model from rank 0",
    "_loop/": "the end of a step",
    "_data/evaluat": "an evaluation",
    "_data/metric_updates.py": "an evaluation",
    "_data/": "data loading",
    "_state/rundir/": "the start of the run",
    "_state/recovery/divergence.py": "the comparison of the ranks' weights",
    "_state/": "a checkpoint (or the decision about one)",
    "_events/": "the log",
    "_prepare/per_shard.py": "a checkpoint of team.per_shard values",
    "_prepare/": "the preparation of models",
    "_joining/team.py": "a call of the team",
    "_joining/": "the start of the run",
}
"""The work of each part of lockstep, as a noun phrase. The first prefix of a file's path that
matches counts."""


@functools.cache
def purpose_of(file: str) -> str:
    """What the code in a file of lockstep's does with the other ranks, for the user."""
    place = file.removeprefix(OURS)
    return next((purpose for prefix, purpose in PURPOSES.items() if place.startswith(prefix)), "lockstep's own work")


@functools.cache
def via_of(file: str) -> str:
    """What stands for the calling function in a record of a call that this file has made."""
    return f"{VIA}{purpose_of(file)}"


def own_purpose(frames: Sequence[Frame]) -> str:
    """What lockstep does for the user in the collective in which a thread waits; empty: a call of
    the user's led there.

    ``frames``: the thread's stack, innermost frame first.
    """
    file = next((file for file, _, _ in frames if not is_between(file)), "")
    return purpose_of(file) if owner(file) == "lockstep" else ""


def describe_own(purpose: str, call: str) -> str:
    """A call with its purpose: ``the exchange of gradients: lockstep's all_gather number 41 (shape
    [200] of byte)``."""
    return f"{purpose}: lockstep's {call}"
