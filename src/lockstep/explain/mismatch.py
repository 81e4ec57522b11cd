"""Collective mismatches: ranks that called different collectives, or the same one with different tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.explain.rank_reports import name_ranks

_SAME_SHAPES = ("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base")
"""Collectives whose tensors must have the same shape on all ranks."""


def first_mismatch(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The first of the most recent collectives that differs between ranks, in words; None: none is known to.

    ``records``: of the ranks' black boxes.
    """
    by_number: dict[int, dict[str, list[int]]] = {}
    for record in records:
        for number, what in record.get("recent") or ():
            by_number.setdefault(int(number), {}).setdefault(str(what), []).append(int(record["rank"]))
    for number, called in sorted(by_number.items()):
        if len({what if (name := what.partition(" (")[0]) in _SAME_SHAPES else name for what in called}) > 1:
            which = sorted(called.items(), key=lambda entry: entry[1])
            return f"number {number} was {', '.join(f'{what} on {name_ranks(ranks)}' for what, ranks in which)}"
    return None
