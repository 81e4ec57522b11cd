"""Errors of a training loop that is not lockstep's yet, or keeps what belongs to a step."""

from __future__ import annotations

import inspect
import re

from lockstep._base.errors import did_you_mean
from lockstep._tools.explain.errors.row import row
from lockstep._tools.explain.errors.scene import Scene


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


def _misspelled(match: re.Match[str], scene: Scene) -> str:
    """A call of lockstep's with an argument that it does not have. (Newer versions of Python say
    what was meant.)"""
    lockstep = scene.modules.get("lockstep")
    if lockstep is None or "Did you mean" in scene.text:
        return ""
    owner, _, called = match["call"].rpartition(".")
    if (owner, called) == ("Tensor", "backward"):  # what team.backward() passes on
        owner = "Team" if any(type(f.f_locals.get("self")).__name__ == "Team" for f in scene.frames) else ""
    if (owner or called) not in lockstep.__all__:
        return ""
    function = getattr(getattr(lockstep, owner), called) if owner else getattr(lockstep, called)
    names = [*inspect.signature(function).parameters, *(_OF_BACKWARD if called == "backward" else ())]
    meant = did_you_mean(match["name"], [name for name in names if name not in ("self", "options")])
    return f"{match['call']}() has no argument {match['name']!r}{meant}." if meant else ""


_OF_BACKWARD = ("retain_graph", "create_graph", "inputs")
"""Arguments of ``Tensor.backward`` that ``Team.backward`` passes on."""

ROWS = (
    row(
        "misspelled argument",
        r"^(?P<call>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'",
        _misspelled,
        ("TypeError",),
    ),
    row("unprepared loader", "", _not_prepared, ("AttributeError",)),
    row(
        "a graph used twice",
        r"backward through the graph a second time",
        "The loss depends on something that an earlier backward pass has used up: mostly a hidden state, or a running value, "
        "that was kept from the step before. Cut it off there, with state = state.detach(); in a lockstep script, keep it with "
        "team.per_shard, since each shard has its own. If two losses share a forward pass, add them and call backward once.",
    ),
)
