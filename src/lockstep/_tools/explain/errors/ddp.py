"""DistributedDataParallel: parameters that are unused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lockstep._tools.explain.errors.row import row
from lockstep._tools.explain.errors.scene import Scene, listed, reduced, shape

_NAMED = re.compile(r"Parameters which did not receive grad for rank \d+: ([^\n]+)")
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank (\d+): ([\d ]+)")


def _unused(match: re.Match[str], scene: Scene) -> str:
    """Explains DDP's error about unused parameters. Its text always has their indices, and their
    names only with TORCH_DISTRIBUTED_DEBUG."""
    indices, named = _INDICES.search(scene.text), _NAMED.search(scene.text)
    known = reduced(scene.ddp) if scene.ddp is not None else []
    rank = f"rank {indices[1]}" if indices else "this rank"
    unused = [int(index) for index in indices[2].split()] if indices else []
    if unused and max(unused) < len(known):
        which = f"{_described([known[index] for index in unused])} ({len(unused)} of {len(known)} parameters)"
    elif named:
        which = named[1].strip()
    else:
        which = f"{len(unused) or 'some'} parameters"
    if scene.ddp is not None and scene.ddp.__dict__.get("static_graph"):
        remedy = (
            "If forward() returns an output that the loss does not use, return only what the loss uses. Otherwise replace "
            "static_graph=True by find_unused_parameters=True (together, the latter has no effect)."
        )
    else:
        remedy = (
            "If they are used in some steps only, pass find_unused_parameters=True to DistributedDataParallel. Otherwise "
            "forward() returns an output that the loss does not use, or hides it in an object that DDP does not inspect."
        )
    return (
        f"In the previous step, the loss of {rank} did not depend on {which}. DistributedDataParallel still waits for their "
        "gradients, so this step cannot begin. If they should not be trained, set requires_grad=False before DDP wraps the "
        f"model. {remedy}"
    )


def _described(parameters: Sequence[tuple[str, Any]]) -> str:
    return listed(f"{name} {shape(parameter)}" for name, parameter in parameters)


ROWS = (row("unused parameters", r"Expected to have finished reduction in the prior iteration", _unused),)
