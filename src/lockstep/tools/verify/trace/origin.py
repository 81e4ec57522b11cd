"""In which part of the computation a difference arose, given runs that recorded their layers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.tools.verify.trace.differences import Difference, first_difference
from lockstep.tools.verify.trace.traced_run import TracedRun

_BY_STAGE = {
    "ranks": "update",
    "steps": "samples",
    "samples": "samples",
    "content": "data",
    "loss": "unknown",
    "weight of a loss": "after the model",
    "gradient of a shard": "backward",
    "gradient": "exchange",
    "evaluation": "evaluation",
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A part of the computation."""

    where: str
    """``data``, ``before the model``, ``layer``, ``after the model``, ``backward``, ``exchange``, ``update``, ``beginning``,
    ``evaluation``, ``end``, ``samples`` or ``unknown``."""
    layer: str | None = None
    kind: str | None = None
    """The class of the layer."""


def origin(difference: Difference, reference: TracedRun | None, run: TracedRun | None) -> Origin:
    """Where a difference arose.

    Args:
        difference: between two runs.
        reference: the first, traced with its layers; None: not available.
        run: the second.
    """
    if difference.is_behind:
        return Origin(where="end")
    where = "beginning" if difference.step == 0 else _BY_STAGE.get(difference.stage, "update")
    if where != "unknown" or reference is None or run is None:
        return Origin(where=where)
    again = first_difference(reference, run)
    if again is None or again.stage != "loss":
        return Origin(where="unknown")
    for key, owners in reference.shards_of(again.step):
        if (key.phase, key.shard) == (again.phase, again.shard) and key in run.shards:
            return _first_layer(owners[0][1].get("layers", []), run.shards[key][0][1].get("layers", []))
    return Origin(where="unknown")


def _first_layer(mine: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> Origin:
    """The first layer with equal inputs and different outputs. Each entry has a layer's name, class, and digests of its inputs
    and output; they are in the order in which the forward passes ended, so the first is the innermost."""
    if not mine or not theirs:
        return Origin(where="unknown")
    if [layer[0] for layer in mine] != [layer[0] for layer in theirs]:
        return Origin(where="before the model")  # other layers ran
    pairs = list(zip(mine, theirs, strict=True))
    for left, right in pairs:
        if left[2] == right[2] and left[3] != right[3]:
            return Origin(where="layer", layer=left[0], kind=left[1])
    return Origin(where="after the model" if all(left[3] == right[3] for left, right in pairs) else "before the model")
