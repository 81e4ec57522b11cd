"""DistributedDataParallel: parameters that are unused, used twice, or not the same on all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lockstep.tools.explain.errors.row import row
from lockstep.tools.explain.errors.scene import Scene, learning, listed, reduced, shape

_NAMED = re.compile(r"Parameters which did not receive grad for rank \d+: ([^\n]+)")
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank (\d+): ([\d ]+)")


def _unused(match: re.Match[str], scene: Scene) -> str:
    """The text contains names only with TORCH_DISTRIBUTED_DEBUG, but always indices."""
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
            "if forward() makes an output that the loss leaves out, return only what the loss uses. Else leave "
            "static_graph=True out, with which find_unused_parameters=True has no effect, and give that alone."
        )
    else:
        remedy = (
            "if they are used in some steps only, DistributedDataParallel(..., find_unused_parameters=True). Else forward() "
            "makes an output that the loss leaves out, or hides it in an object that DDP does not look into."
        )
    return (
        f"In the step before, the loss of {rank} did not depend on {which}. "
        "DistributedDataParallel still waits for their gradients, as the other ranks do, so this step cannot begin. If they "
        f"are not to be trained, set requires_grad=False before DDP wraps the model; {remedy}"
    )


def _twice(match: re.Match[str], scene: Scene) -> str:
    at = re.search(r"Parameter at index (\d+)(?: with name (\S+))? has been marked", scene.text)
    known = reduced(scene.ddp) if scene.ddp is not None else []
    name = ""
    if at is not None:
        name = at[2] or (known[int(at[1])][0] if int(at[1]) < len(known) else f"number {at[1]}")
    return (
        f"The gradient of {f'parameter {name}' if name else 'a parameter'} was ready twice in one backward pass, so "
        "DistributedDataParallel would add it up over the ranks twice, or unfinished. Its layer runs in several checkpoint() "
        "calls with use_reentrant=True, or is used outside of the model's forward(), or both. Use checkpoint(..., "
        "use_reentrant=False), call the model once for each backward pass, or DistributedDataParallel(..., static_graph=True) "
        "if every step is the same."
    )


def _own_parameters(scene: Scene) -> list[tuple[str, Any]]:
    """The parameters of the model that is being wrapped."""
    module = scene.find("__init__", "module")
    if module is None or not scene.is_module(module):
        return []
    ddp = scene.find("__init__", "self")
    return learning(module, ddp.__dict__.get("parameters_to_ignore", ()) if scene.is_module(ddp) else ())


def _described(parameters: Sequence[tuple[str, Any]]) -> str:
    return listed(f"{name} {shape(parameter)}" for name, parameter in parameters)


_SAME_MODEL = (
    "DistributedDataParallel cannot add up gradients that do not belong together, and the other ranks fail or wait. Build the "
    "same model on every rank: look for sizes that depend on the rank, or on its part of the data (a vocabulary, the number of "
    "classes), and for layers that some ranks alone have, freeze, or make in the first forward pass."
)


def _other_number(match: re.Match[str], scene: Scene) -> str:
    parameters, num_here, num_there = _own_parameters(scene), int(match["own"]), int(match["other"])
    if len(parameters) * 2 == num_here:  # sizes and strides are counted separately
        num_here, num_there = num_here // 2, num_there // 2
    have = f": {_described(parameters)}" if len(parameters) == num_here else ""
    return (
        f"The ranks have built different models: that of rank {match['rank']} has {num_here} parameters that get "
        f"gradients{have}. That of rank {match['peer']} has {num_there}. {_SAME_MODEL}"
    )


def _other_shape(match: re.Match[str], scene: Scene) -> str:
    parameters, index = _own_parameters(scene), int(match["index"])
    name = f"parameter {parameters[index][0]}" if index < len(parameters) else f"parameter number {index}"
    unlike = (
        "another shape"
        if match["what"] == "sizes"
        else "another order in memory (strides: a transposed or channels-last tensor)"
    )
    rank = f"rank {match['rank']}" if match["rank"] else "this rank"
    differs = f"{name} is {match['sizes']} on {rank}, and has {unlike} on rank 0"
    return f"The ranks have built different models: {differs}. {_SAME_MODEL}"


ROWS = (
    row("unused parameters", r"Expected to have finished reduction in the prior iteration", _unused),
    row("a parameter used twice", r"Expected to mark a variable ready only once", _twice),
    row(
        "mismatched models",
        r"DDP expects same model across all ranks, but Rank (?P<rank>\d+) has (?P<own>\d+) params, "
        r"while rank (?P<peer>\d+) has inconsistent (?P<other>\d+) params",
        _other_number,
    ),
    row(
        "mismatched models",
        r"(?:\[(?P<rank>\d+)\]: )?params\[(?P<index>\d+)\] in this process with sizes (?P<sizes>\[[\d, ]*\]) appears not to "
        r"match (?P<what>sizes|strides) of the same param in process 0",
        _other_shape,
    ),
)
