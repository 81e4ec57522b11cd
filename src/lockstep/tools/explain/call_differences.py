"""In what two calls of one collective differ that must be the same on every rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lockstep.tools.explain.call_log import Call, Line, LoggedCall
from lockstep.tools.explain.mismatch import SAME_CALLS
from lockstep.tools.explain.rank_reports import own_words
from lockstep.world.machine.sizes import name_ranks

_TO_ROOT = ("reduce", "gather", "gather_object")
_COPYING = ("broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all", "all_to_all_single")
_BYTES = {"bool", "uint8"}
"""May stand for each other where they are only copied."""


def difference(one: Call, other: Call) -> str:
    """In what the calls of two ranks differ, and what to do, in words; empty: in nothing that matters."""
    if one == other:
        return ""
    if one.kind != other.kind:
        return SAME_CALLS
    if not _have_same_type(one, other):
        # "float" among them: an integer type would lose digits
        target = max(one.dtype, other.dtype, key=lambda dtype: "float" in dtype)
        return (
            f"The bytes of {one.dtype} are read as {other.dtype} on other ranks: convert the tensors to one type before the "
            f"call, with .to(torch.{target}), say."
        )
    if not _have_same_shape(one, other):
        return "The elements of tensors of different shapes do not belong together: give them one shape before the call."
    if one.op != other.op:
        return f"A rank that reduces with {one.op} gets different numbers from one with {other.op}: give op= one value."
    if one.root != other.root:
        return (
            f"The root is rank {one.root} on some ranks, and rank {other.root} on others: give "
            f"{'dst' if one.kind in _TO_ROOT else 'src'}= one value. (It is a rank of the whole run, not of the group.)"
        )
    return ""


def _have_same_type(one: Call, other: Call) -> bool:
    types = {one.dtype, other.dtype}
    return len(types) == 1 or "" in types or (one.kind in _COPYING and types == _BYTES)


def _have_same_shape(one: Call, other: Call) -> bool:
    """Whether elements meet that belong together: a scalar may be a vector, and any tensor may be flattened."""
    if one.shape is None or other.shape is None:
        return True
    shapes = {tuple(size for size in shape if size != 1) for shape in (one.shape, other.shape)}
    is_flat = any(len(shape) < 2 for shape in shapes)
    return len(shapes) == 1 or (is_flat and len(set(map(math.prod, shapes))) == 1)


def describe(call: Call) -> str:
    """A call in words: ``reduce of float32 [3, 4], op SUM, to rank 0``."""
    shape = "" if call.shape is None else f" {list(call.shape)}"
    tensors = f" of {call.dtype}{shape}" if call.dtype else ""
    op = f", op {call.op}" if call.op else ""
    return f"{call.kind}{tensors}{op}{'' if call.root is None else f', {_way(call)} rank {call.root}'}"


def _way(call: Call) -> str:
    return "to" if call.kind in _TO_ROOT else "from"


def report(called: Mapping[int, LoggedCall]) -> str:
    """Calls of one collective that do not match, by rank, in words."""
    calls = [each.call for each in called.values()]
    head = "ranks have called one collective in different ways: its numbers are wrong, even where no error follows."
    if len({call.kind for call in calls}) > 1:
        head = "ranks have called different collectives in the same place."
    lines = [head]
    together: dict[tuple[Call, Line], list[int]] = {}
    for rank, each in sorted(called.items()):
        together.setdefault((each.call, each.line), []).append(rank)
    for (call, line), ranks in together.items():
        lines.append(f"  {name_ranks(ranks)}: {own_words(line.is_own)}{describe(call)}, at {line.at}")
    return "\n".join([*lines, next(filter(None, (difference(calls[0], call) for call in calls)), "")])
