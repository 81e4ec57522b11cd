"""Whether ranks have called different collectives, or the same ones with different tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.explain.rank_reports import name_ranks

_SAME_SHAPES = ("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base")
"""Those whose tensors must be alike on all ranks. (Others may have what each rank has to give, or be told by one.)"""


def first_difference(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The first of the newest collectives that was not the same on all ranks, in words; None: no difference is known."""
    by_number: dict[int, dict[str, list[int]]] = {}
    for record in records:
        for number, what in record.get("recent") or ():
            by_number.setdefault(int(number), {}).setdefault(str(what), []).append(int(record["rank"]))
    for number in sorted(by_number):
        compared = by_number[number]
        if len({_compared(what) for what in compared}) > 1:
            which = ", ".join(
                f"{what} on {name_ranks(ranks)}" for what, ranks in sorted(compared.items(), key=lambda entry: entry[1])
            )
            return f"number {number} was {which}"
    return None


def _compared(what: str) -> str:
    name = what.partition(" (")[0]
    return what if name in _SAME_SHAPES else name
