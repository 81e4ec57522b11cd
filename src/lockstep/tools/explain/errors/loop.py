"""Errors of a training loop that is not lockstep's yet, or keeps what belongs to a step."""

from __future__ import annotations

import re

from lockstep.tools.explain.errors.row import row
from lockstep.tools.explain.errors.scene import Scene


def _not_prepared(match: re.Match[str], scene: Scene) -> str:
    """An error of this kind names the attribute, and holds the object that lacks it."""
    error = scene.error
    if not isinstance(error, AttributeError) or error.name != "shards" or "lockstep" not in scene.modules:
        return ""
    kind = type(error.obj)
    if not scene.is_tensor(error.obj) and kind.__module__.partition(".")[0] == "lockstep":
        return ""
    return (
        f"The loop over .shards got a {kind.__name__}, as a plain loader yields it: the loader was not prepared, or the one "
        "before prepare() is used. Only a prepared loader yields batches with .shards, each process's part of them: write "
        "`loader = team.prepare(loader)`, or `model, optimizer, loader = team.prepare(model, optimizer, loader)`, before the "
        "loop; in an evaluation iterate what `with team.evaluate(model, loader) as ...` gives."
    )


ROWS = (
    row("unprepared loader", "", _not_prepared, ("AttributeError",)),
    row(
        "a graph used twice",
        r"backward through the graph a second time",
        "The loss depends on something that an earlier backward pass has used up: mostly a hidden state, or a running value, "
        "that was kept from the step before. Cut it off there, with state = state.detach(); in a lockstep script, keep it with "
        "team.per_shard, since each shard has its own. If two losses share a forward pass, add them and call backward once.",
    ),
)
