"""Compares the collectives that the ranks of one machine have called, while they run. Pure.

Where ranks call one collective with tensors of equal size but of another type, or with another op or root, the backend combines
the bytes as they are: no error follows, and the numbers are wrong. The logs of the calls tell, within a second or two.

Calls that belong together are found by counting those of a group. That may go wrong: a rank may make a call through
another function than its peers, or have it compiled, and then does not log it. PyTorch's own number tells, unless ranks have
sent messages to single ranks, which Gloo numbers, too. Then a call must stand between two that match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lockstep.tools.explain.call_differences import difference, report
from lockstep.tools.explain.call_log import Group, LoggedCall
from lockstep.tools.explain.rank_reports import name_group

_MOST = 200_000
"""Calls of a group to remember that some rank has not made yet, or never logs."""

_Called = dict[int, LoggedCall]
"""What the ranks of a group have called with one place, by rank."""


class CallComparison:
    """Collects the calls of the ranks, and finds those that do not match.

    Args:
        ranks: that are compared.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._ranks = frozenset(ranks)
        self._called: dict[Group, dict[int, _Called]] = {}
        """The latest calls, by group and place."""
        self._newest: dict[tuple[Group, int], int] = {}
        """By group and rank: the place of the latest."""
        self._differing: dict[tuple[Group, int], _Called] = {}

    def add(self, rank: int, calls: Iterable[LoggedCall]) -> None:
        """Add what a rank has called since the last time."""
        for each in calls:
            group, place = each.group, each.place
            if len(self._ranks.intersection(group.members)) < 2:
                continue
            called = self._called.setdefault(group, {}).setdefault(place, {})
            called[rank] = each
            self._newest[group, rank] = place
            if len(called) > 1 and _has_difference(called.values()):
                self._differing[group, place] = called

    def found(self, *, is_over: bool, alike_suffice: bool = False) -> tuple[int, str, str] | None:
        """The first collective in which the ranks' calls do not match: one of the ranks, which collective it is, and a report.

        Args:
            is_over: whether the ranks have ended; else only if one of them has called another since in that group: otherwise
                they may all wait in it, and the reason why may be elsewhere.
            alike_suffice: whether calls of one kind count without that.
        """
        for (group, place), called in tuple(self._differing.items()):
            have_gone_on = [self._newest[group, rank] > place for rank in called]
            are_alike = len({each.call.kind for each in called.values()}) == 1
            if (is_over or any(have_gone_on) or (alike_suffice and are_alike)) and (
                certain := self._certain(group, place, called)
            ):
                number = certain[min(certain)].number
                return min(certain), f"number {number} of {name_group(group.name, group.members)}", report(certain)
            if all(have_gone_on):
                del self._differing[group, place]
        for group in self._called:
            self._forget(group)
        return None

    def _certain(self, group: Group, place: int, called: _Called) -> _Called:
        """Of calls with one place, among which some differ, those that are certain to belong together; empty: none is."""
        by_number: dict[int, _Called] = {}
        for rank, each in called.items():
            by_number.setdefault(each.number, {})[rank] = each
        for together in by_number.values():
            if _has_difference(together.values()):
                return together
        beside = [self._called[group].get(place + 1, {}), *([self._called[group].get(place - 1, {})] if place > 1 else [])]
        stands_between = all(called.keys() <= each.keys() and not _has_difference(each.values()) for each in beside)
        return called if stands_between else {}

    def _forget(self, group: Group) -> None:
        """Forget what is no longer needed: what all have called, but for the last, and for what stands beside a difference."""
        of_group = self._called[group]
        num_ranks = len(self._ranks.intersection(group.members))
        complete = [place for place, called in of_group.items() if len(called) == num_ranks]
        kept = {near for at, place in self._differing if at == group for near in (place - 1, place, place + 1)}
        kept.add(max(complete, default=0))
        for place in complete:
            if place not in kept:
                del of_group[place]
        while len(of_group) > _MOST:
            del of_group[next(iter(of_group))]


def _has_difference(calls: Collection[LoggedCall]) -> bool:
    first, *rest = calls
    return any(difference(first.call, each.call) for each in rest)
