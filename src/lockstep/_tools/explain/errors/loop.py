"""Errors of a training loop that does not use lockstep yet, or keeps a graph beyond its step."""

from __future__ import annotations

import inspect
import re

from lockstep._base.errors import did_you_mean
from lockstep._tools.explain.errors.row import row
from lockstep._tools.explain.errors.scene import Scene


def _not_prepared(match: re.Match[str], scene: Scene) -> str:
    """Explains an AttributeError about ``shards``, which has the object that lacks it."""
    error = scene.error
    if not isinstance(error, AttributeError) or error.name != "shards" or "lockstep" not in scene.modules:
        return ""
    kind = type(error.obj)
    if not scene.is_tensor(error.obj) and kind.__module__.partition(".")[0] == "lockstep":
        return ""
    return (
        f"The loop over .shards got a {kind.__name__} from a loader that was not prepared. Only a prepared loader yields "
        "batches with .shards. Use the loader that prepare() returns: `model, optimizer, loader = team.prepare(model, "
        "optimizer, loader)`. In an evaluation, iterate the object of `with team.evaluate(model, loader) as ...`."
    )


def _misspelled(match: re.Match[str], scene: Scene) -> str:
    """Explains an unknown argument of a call of lockstep's. (Newer versions of Python suggest the
    right name themselves.)"""
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
        "The loss depends on a graph that an earlier backward pass has freed, mostly through a hidden state or running value "
        "that was kept from the previous step. Detach it: state = state.detach(). In a lockstep script, keep it with "
        "team.per_shard, since each shard has its own. If two losses share a forward pass, add them and call backward once.",
    ),
)
