"""Collective mismatches: ranks that called different collectives, or the same one with different tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.base.tracebacks.frames import Frame
from lockstep.tools.explain.frames import users_location
from lockstep.tools.explain.rank_reports import DEFAULT_GROUP, name_group
from lockstep.tools.explain.sampler import is_communicating
from lockstep.world.machine.sizes import name_ranks

SAME_CALLS = (
    "Every rank must call the same collectives in the same order, with tensors of the same shape and type: is one called on "
    "some ranks only, behind an `if`?"
)
_SAME_SHAPES = ("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base")
"""Collectives whose tensors must have the same shape on all ranks."""


def first_mismatch(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The first of the most recent collectives that differs between ranks, in words; None: none is known to.

    ``records``: of the ranks' black boxes.
    """
    by_place: dict[tuple[str, int], dict[str, list[int]]] = {}
    for record in records:
        for number, what, group in record.get("recent") or ():
            by_place.setdefault((str(group), int(number)), {}).setdefault(str(what), []).append(int(record["rank"]))
    for (group, number), called in sorted(by_place.items()):
        if len(set(map(_must_be_same, called))) > 1:
            which = sorted(called.items(), key=lambda entry: entry[1])
            of = "" if group == DEFAULT_GROUP else f" of {name_group(group, ())}"
            return f"number {number}{of} was {', '.join(f'{what} on {name_ranks(ranks)}' for what, ranks in which)}"
    return None


def may_match(what: str, other: str) -> bool:
    """Whether two calls, each described by name and tensors, may be the same collective's."""
    return _must_be_same(what) == _must_be_same(other)


def _must_be_same(what: str) -> str:
    name = what.partition(" (")[0]
    return what if name in _SAME_SHAPES else name


def at_failure(
    records: Sequence[Mapping[str, Any]], stacks: Mapping[int, Sequence[Frame]], *, has_aborted: bool
) -> str | None:
    """Where ranks were whose communication failed together, if they had called different collectives; None: no sign of it.

    Args:
        records: of the ranks' black boxes.
        stacks: of the failed ranks, innermost frame first.
        has_aborted: whether one was ended by its communication library, as Gloo does where sizes differ. Otherwise the network
            may have failed.
    """
    first = first_mismatch(records)
    if not all(is_communicating(stack) or _is_in_backward(stack) for stack in stacks.values()):
        return None  # something else has ended one of them
    groups: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        groups.setdefault(users_location(stack), []).append(rank)
    if first is None and not (has_aborted and len(groups) > 1):
        return None
    lines = ["communication failed, since the ranks have called different collectives."]
    lines += [f"  {name_ranks(ranks)}: at {location}" for location, ranks in groups.items() if location]
    if first is not None:
        lines.append(f"  The first of the latest ones that differs: {first}.")
    return "\n".join([*lines, SAME_CALLS])


def _is_in_backward(stack: Sequence[Frame]) -> bool:
    return bool(stack) and "/torch/autograd/" in stack[0][0]
