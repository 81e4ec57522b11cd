"""Collective mismatches: ranks that called different collectives, or the same one with different
tensors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep._base.tracebacks.frames import Frame
from lockstep._tools.explain.call_ring import NotedCall
from lockstep._tools.explain.collective_calls import difference, parse, sizes_differ
from lockstep._tools.explain.frames import users_location
from lockstep._tools.explain.own_calls import VIA, describe_own
from lockstep._tools.explain.rank_reports import DEFAULT_GROUP, name_group
from lockstep._tools.explain.sampler import is_communicating
from lockstep._world.machine.sizes import name_ranks

SAME_CALLS = (
    "Every rank must call the same collectives in the same order, with tensors of the same shape and type. Look for a "
    "collective behind an `if` that is true on some ranks only."
)
_REMEDIES = {
    "dtype": "Other ranks read these bytes as another type. Convert the tensors to one type before the call.",
    "op": "Ranks that reduce with different ops get different numbers. Pass the same op= on all ranks.",
    "root": "Pass the same src= or dst= on all ranks (the number of a rank in the run, not in the group).",
}

_Place = tuple[str, int, int]
"""A collective: the group's name, which group of that name it is, and the number in it."""


@dataclass(frozen=True)
class Difference:
    """A collective that ranks have called in different ways."""

    group: str
    number: int
    calls: Mapping[int, NotedCall]
    """The call of each rank that is known."""
    aspect: str
    """The property that differs: ``kind``, ``dtype``, ``size``, ``op`` or ``root``."""

    def __str__(self) -> str:
        """The difference as a clause: ``number 3 was barrier on rank 0, all_reduce (...) on rank
        1``."""
        called: dict[str, list[int]] = {}
        for rank, call in sorted(self.calls.items()):
            called.setdefault(str(call.call), []).append(rank)
        of = "" if self.group == DEFAULT_GROUP else f" of {name_group(self.group, ())}"
        return (
            f"number {self.number}{of} was {', '.join(f'{what} on {name_ranks(ranks)}' for what, ranks in called.items())}"
        )

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return _REMEDIES.get(self.aspect, SAME_CALLS)

    @property
    def odd_ranks(self) -> tuple[int, ...]:
        """The ranks that differ from most others; all if there is no majority."""
        called: dict[tuple[str, str], list[int]] = {}
        for rank, call in sorted(self.calls.items()):
            called.setdefault((str(call.call), call.at), []).append(rank)
        most = max(called.values(), key=len)
        if 2 * len(most) <= len(self.calls):
            return tuple(sorted(self.calls))
        return tuple(rank for rank in sorted(self.calls) if rank not in most)

    def odd_among(self, num_ranks: int) -> tuple[int, ...]:
        """The ranks that differ from most of ``num_ranks``, where the calls of some may be
        unknown; empty without a majority of all."""
        odd, num_known = self.odd_ranks, len(self.calls)
        return odd if num_known >= num_ranks or 2 * (num_known - len(odd)) > num_ranks else ()

    def lines(self, stacks: Mapping[int, Sequence[Frame]] | None = None) -> list[str]:
        """Lines with each rank's call and its place. ``stacks``: the stacks of ranks, used where
        a call's line is unknown."""
        said: dict[str, list[int]] = {}
        for rank, call in sorted(self.calls.items()):
            at = call.at or users_location((stacks or {}).get(rank, ()))
            said.setdefault(f"{describe_call(call)}{f', at {at}' if at else ''}", []).append(rank)
        return [f"{name_ranks(ranks)}: {what}" for what, ranks in said.items()]


def describe_call(call: NotedCall) -> str:
    """A call, and the function that was called for it: ``broadcast (shape [1] of long) of
    broadcast_object_list``."""
    if call.via.startswith(VIA):
        return describe_own(call.via.removeprefix(VIA), str(call.call))
    of = f" of {call.via}" if call.via.endswith(("_object", "_list")) else ""
    return f"{call.call}{of}"


def of_records(records: Iterable[Mapping[str, Any]]) -> dict[int, list[NotedCall]]:
    """The latest calls of each rank, from the ranks' black boxes."""
    called = {}
    for record in records:
        called[int(record["rank"])] = [
            NotedCall(int(number), 0.0, str(group), 0, parse(str(what)), *map(str, rest or ("", "")))
            for number, what, group, *rest in record.get("recent") or ()
        ]
    return called


def first_mismatch(records: Sequence[Mapping[str, Any]]) -> Difference | None:
    """The first of the most recent collectives that differs between ranks; None: none is known to.

    ``records``: of the ranks' black boxes.
    """
    return first_difference(of_records(records))


def first_difference(called: Mapping[int, Sequence[NotedCall]], *, has_failed: bool = False) -> Difference | None:
    """The first collective that differs between ranks; None: none of the known ones.

    Args:
        called: the latest calls of each rank.
        has_failed: whether communication has failed, as some backends do where sizes differ that
            others allow.
    """
    together = by_place(called)
    for (group, _, number), calls in sorted(
        together.items(), key=lambda entry: (min(call.time_s for call in entry[1].values()), entry[0])
    ):
        if len(calls) > 1 and (aspect := _aspect(calls.values(), has_failed=has_failed)):
            return Difference(group, number, calls, aspect)
    return None


def has_gone_on(called: Mapping[int, Sequence[NotedCall]], difference: Difference) -> bool:
    """Whether a rank has called another collective since in that group, so that it did not wait for
    ever in this one."""
    newest = [
        max(call.number for call in called[rank] if (call.group, call.life) == (difference.group, mine.life))
        for rank, mine in difference.calls.items()
    ]
    return max(newest) > difference.number


def by_place(called: Mapping[int, Sequence[NotedCall]]) -> dict[_Place, dict[int, NotedCall]]:
    """Which collectives ranks have called, and how. Without messages, and numbers that a rank's
    backends give twice."""
    together: dict[_Place, dict[int, NotedCall]] = {}
    ambiguous = set[_Place]()
    for rank, calls in called.items():
        for call in calls:
            place = call.group, call.life, call.number
            by_rank = together.setdefault(place, {})
            if call.number == 0 or rank in by_rank:
                ambiguous.add(place)
            by_rank[rank] = call
    return {place: calls for place, calls in together.items() if place not in ambiguous}


def _aspect(calls: Iterable[NotedCall], *, has_failed: bool) -> str:
    one, *others = {(call.call, bool(call.via)): call for call in calls}.values()
    for other in others:
        is_loose = bool(one.via) != bool(other.via)
        if aspect := difference(one.call, other.call, is_loose=is_loose):
            return aspect
        if has_failed and not is_loose and sizes_differ(one.call, other.call):
            return "size"
    return ""


def at_failure(
    called: Mapping[int, Sequence[NotedCall]], stacks: Mapping[int, Sequence[Frame]], *, has_aborted: bool
) -> tuple[Difference | None, list[str]] | None:
    """Where ranks were whose communication failed together, if they had called different
    collectives: the first that differs, if it is known, and lines for the user. None: there is no
    sign of it.

    Args:
        called: the latest calls of each rank.
        stacks: of the failed ranks, innermost frame first.
        has_aborted: whether one was ended by its communication library, as Gloo does where sizes
            differ. Otherwise the network may have failed.
    """
    first = first_difference(called, has_failed=True)
    if not all(is_communicating(stack) or _is_in_backward(stack) for stack in stacks.values()):
        return None  # something else has ended one of them
    head = "communication failed because the ranks called different collectives."
    if first is not None:
        others = [rank for rank in sorted({*called, *stacks}) if rank not in first.calls]
        lines = [
            *first.lines(stacks),
            *(f"rank {rank}: {_latest(called.get(rank, ()), stacks.get(rank, ()))}" for rank in others),
        ]
        return first, [head, *(f"  {line}" for line in lines), first.remedy]
    places: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        places.setdefault(users_location(stack), []).append(rank)
    if not has_aborted or len(places) < 2:
        return None
    # A call made in C++ is lost with the process that made it, but the traceback has its line.
    return None, [head, *(f"  {name_ranks(ranks)}: at {at}" for at, ranks in places.items() if at), SAME_CALLS]


def _latest(calls: Sequence[NotedCall], stack: Sequence[Frame]) -> str:
    """What is known of a rank whose own call of that collective is not."""
    if at := users_location(stack):
        return f"at {at} (its call is unknown)"
    if not calls:
        return "its calls are unknown"
    last = calls[-1]
    number = f"number {last.number}, " if last.number else ""
    return f"latest known call: {number}{describe_call(last)}{f', at {last.at}' if last.at else ''}"


def _is_in_backward(stack: Sequence[Frame]) -> bool:
    return bool(stack) and "/torch/autograd/" in stack[0][0]
