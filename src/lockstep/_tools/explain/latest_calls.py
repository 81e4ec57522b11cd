"""The latest collectives of this process, from PyTorch's recorder and from the ring of noted calls,
as a black box keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep._tools.explain.collective_calls import difference, parse
from lockstep._tools.explain.flight_recorder import Collective
from lockstep._tools.explain.recorded_calls import recent_calls

_MOST = 16

LatestCall = tuple[int, str, str, str, str]
"""A call: its number in the group, its name and tensors, the group's name, the function that the
script called (empty: only the recorder knows the call), and the line of the user's code."""


def latest_calls(recorded: Sequence[tuple[int, str, str]]) -> list[LatestCall]:
    """The latest collectives, in the order of each group. ``recorded``: by PyTorch's recorder,
    oldest first."""
    noted = {(call.group, call.number): call for call in recent_calls(_MOST) if call.number}
    only = {(group, number): what for number, what, group in recorded[-_MOST:]}
    # Where both know a call, and differ, numbers are not the same: what only the recorder knows has
    # no place then.
    at_odds = {
        group
        for group, number in noted.keys() & only.keys()
        if _are_at_odds(str(noted[group, number].call), only[group, number])
    }
    known = {
        (group, number): (number, what, group, "", "") for (group, number), what in only.items() if group not in at_odds
    }
    known |= {place: (call.number, str(call.call), call.group, call.via, call.at) for place, call in noted.items()}
    return [known[place] for place in sorted(known)]


def _are_at_odds(noted: str, recorded: str) -> bool:
    return difference(parse(noted), parse(recorded), is_loose=True) in ("kind", "dtype")


def last_message() -> str:
    """The latest message to a single rank, for the user, if this process has called no collective
    since."""
    last = recent_calls(1)
    return str(last[0].call) if last and last[0].number == 0 else ""


def pending_call(pending: Collective | None, latest: Sequence[LatestCall]) -> dict[str, Any] | None:
    """A collective that has not ended, with what was noted of it."""
    if pending is None:
        return None
    record = {**asdict(pending), "text": str(pending)}
    for number, what, group, via, _ in latest:
        if (number, group) == (pending.number, pending.group) and via and not _are_at_odds(what, pending.what):
            record |= {"noted": what, "via": via}
    return record
