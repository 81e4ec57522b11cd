"""Collective mismatches: ranks that called different collectives, or the same one with different tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.tools.explain.rank_reports import DEFAULT_GROUP, name_group
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
