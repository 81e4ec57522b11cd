"""Deadlocks: ranks that certainly can never continue, from their black boxes. Pure.

A rank that waits in a collective needs every member of its process group to begin that collective.
It can never continue if one of them has begun another collective instead, has exited, or itself can
never continue::

    rank 0 waits for all_reduce 3 of group 1 --- needs rank 1, which waits in ...
    rank 1 waits for all_reduce 3 of group 2 --- needs rank 0, which waits in ...   both: deadlock
    rank 2 computes                              nothing is concluded about it

The set is found from above: assume that all waiting ranks are stuck, then remove each one that
needs no stuck (or exited) rank, until none is removed. What remains is the greatest set whose ranks
block each other; a cycle or a chain to a dead rank is in it, and a rank that waits for a working
one is not. Nothing is concluded about a rank that computes, loads data, is stopped or does not
answer, so a slow rank never counts as a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from lockstep._base.tracebacks.frames import OURS
from lockstep._tools.explain.collective_calls import difference, parse
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.sampler import is_communicating, transfer_in

LEAST_S = 10.0
"""The seconds without movement after which ranks may be in a deadlock."""
CERTAIN_S = 5.0
"""The seconds after which a deadlock that still exists is certain: ranks write their black boxes at
different moments, so one look may combine different times."""
_ENDED = ("finished", "failed", "gone")
_EXCHANGE = (f"{OURS}_sync/", f"{OURS}_world/comm/short.py")


def deadlocked(reports: Sequence[RankReport]) -> frozenset[int]:
    """The ranks that wait and can never continue; empty: none is known.

    ``reports``: the reports of all ranks.
    """
    by_rank = {report.rank: report for report in reports}
    if not reports or len(by_rank) < int(reports[0].record["world_size"]):
        return frozenset()
    ended = {rank for rank, report in by_rank.items() if report.state in _ENDED}
    waiting = {rank for rank, report in by_rank.items() if _waits(report)}
    holders = _Holders(reports)
    while True:  # until the remaining ranks hold each other
        held = {rank for rank in waiting if holders.hold(by_rank[rank], waiting | ended)}
        if held == waiting:
            return frozenset(held)
        waiting = held


def _waits(report: RankReport) -> bool:
    """Whether its main thread does nothing else. (In the script's code it may compute, whatever
    collective is pending; there is none after the script's end.)"""
    waits = is_communicating(report.frames) or (report.ending and report.record["collective"] is not None)
    return report.state == "running" and report.still_s >= LEAST_S and bool(waits)


class _Holders:
    """The ranks that can block a waiting one. Ranks that wait for the same thing are examined once:
    a thousand ranks wait for few things, and a million comparisons would take many seconds.

    Args:
        reports: the reports of all ranks.
    """

    def __init__(self, reports: Sequence[RankReport]) -> None:
        self._reports = reports
        self._ranks = frozenset(report.rank for report in reports)
        self._found: dict[Hashable, frozenset[int]] = {}

    def hold(self, report: RankReport, stuck: Collection[int]) -> bool:
        """Whether a waiting rank can never continue if the ranks in ``stuck`` cannot."""
        me = {report.rank}
        if (collective := report.record["collective"]) is not None:
            what = collective["text"], collective.get("noted")
            call = what, collective["number"], collective.get("group"), tuple(collective.get("members", ()))
            if self._among_all(("differs", call), lambda peer: _differs(collective, peer)) - me:
                return True
            late = self._among_all(("late", call), lambda peer: _has_not_begun(collective, peer))
            return bool((late - me).intersection(stuck))
        if transfer_in(report.frames):
            return (self._ranks - me).issubset(stuck)  # it is not known from whom it receives
        if any(file.startswith(_EXCHANGE) for file, _, _ in report.frames):
            doing = report.record["doing"]
            place = "exchange", doing.get("step"), doing.get("phase")
            return bool((self._among_all(place, lambda peer: _is_before_exchange(report, peer)) - me).intersection(stuck))
        return False

    def _among_all(self, key: Hashable, condition: Callable[[RankReport], bool]) -> frozenset[int]:
        """The ranks that fulfill a condition. ``key``: the same for the same condition."""
        if key not in self._found:
            self._found[key] = frozenset(peer.rank for peer in self._reports if condition(peer))
        return self._found[key]


def _differs(collective: Mapping[str, Any], peer: RankReport) -> bool:
    """Whether a rank has called another collective instead of this one, which then never
    completes."""
    noted = str(collective.get("noted", ""))
    mine = parse(noted or str(collective["text"]).replace(f" number {collective['number']}", "", 1))
    return any(
        (number, group) == (collective["number"], collective.get("group"))
        and difference(mine, parse(what), is_loose=bool(noted) != bool(via and via[0])) not in ("", "op")
        for number, what, group, *via in peer.record.get("recent") or ()
    )


def _has_not_begun(collective: Mapping[str, Any], peer: RankReport) -> bool:
    """Whether a rank is known to be a member of the collective's group, and has begun only earlier
    ones there."""
    group, number = collective.get("group"), int(collective["number"])
    # On Gloo the latest number also counts messages to single ranks: of a rank that waits, its
    # latest collectives are known.
    known = [int(of) for of, _, where, *_ in peer.record.get("recent") or () if where == group] if _waits(peer) else []
    begun = peer.record.get("begun") or {}
    is_member = group in begun or peer.rank in collective.get("members", ())
    return is_member and max(known, default=int(begun.get(group, 0))) < number


def _is_before_exchange(report: RankReport, peer: RankReport) -> bool:
    """Whether a rank has not come to the exchange of gradients in which another one waits:
    messages, unrecorded."""
    mine, theirs = report.record["doing"], peer.record["doing"]
    if "phase" not in mine or "phase" not in theirs:
        return False
    at, there = (mine["step"], mine["phase"]), (theirs["step"], theirs["phase"])
    return bool(there < at or (there == at and theirs["apart"]))
