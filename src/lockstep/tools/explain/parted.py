"""Ranks that have parted: some have left a loop, or do what all must do together, and others go on with their steps. Pure.

It is certain as soon as it shows, and needs no time to pass: a rank that waits for all others outside of its steps
(``loop.meeting``) takes part in no phase of a step before they have come, and one that is in such a phase comes only after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.loop.departure import ENDED, EXCEPTION, PASSED_OVER
from lockstep.tools.explain.frames import users_location
from lockstep.tools.explain.rank_reports import DEFAULT_GROUP, RankReport
from lockstep.world.machine.sizes import name_ranks

ALL_SEEN_S = 3.0
"""After so long, every rank that runs has written its black box."""
_RECORDED_S = 2.0
"""A rank that has not moved for so long has recorded its newest collectives."""
_LEFT = (
    "Every rank must leave the loop after the same step: by what is the same on all ranks, such as batch['loss'] or the result "
    "of an evaluation, or by `if team.any(condition): break` for what each rank sees by itself (a clock, a signal, a file)."
)
_PASSED = (
    "Every rank must run the loops over batch.shards in the same steps: let `continue` depend on what is the same on all "
    "ranks, or write it behind those loops."
)
_CALLED = "Every rank must make such a call, at the same point: is it behind an `if` that is true on some ranks only?"
_CAUSES = {"": "its iterator was dropped", EXCEPTION: "an error"}


@dataclass(frozen=True)
class Parted:
    """Ranks that never come together again."""

    text: str
    """For the user."""
    ranks: tuple[int, ...]
    """Those that have left their loop; if none has, those that wait outside of their steps."""
    cause: str
    """How they left: see ``Departure``. Empty: they have not."""
    places: Mapping[int, str]
    """The line of each rank in the script, as far as it is known."""


@dataclass(frozen=True)
class _Rank:
    """Where a rank is."""

    report: RankReport

    @property
    def doing(self) -> Mapping[str, Any]:
        return self.report.record["doing"]  # type: ignore[no-any-return]

    @property
    def left(self) -> Mapping[str, Any] | None:
        """How it left its loop before the end of that; None: it has not."""
        left = self.doing.get("left")
        return left if isinstance(left, dict) and left.get("cause") != ENDED else None

    @property
    def number(self) -> int:
        """Of its newest meeting."""
        return int(self.doing["meeting"]["number"])

    @property
    def call(self) -> str:
        """Before what it waits for the others; empty: it is elsewhere."""
        return str(self.doing["meeting"]["call"])

    @property
    def comes_next(self) -> tuple[int, int]:
        """The step and the number of the phase in which it would take part next."""
        if isinstance(left := self.doing.get("left"), dict) and not self.doing["in_step"]:
            return int(left["next_step"]), int(left["next_phase"])
        return (self.doing["step"], self.doing["phase"]) if self.doing["in_step"] else (self.doing["step"] + 1, 0)

    @property
    def at(self) -> str:
        """Its line in the script."""
        return users_location(self.report.frames)

    @property
    def where(self) -> str:
        """For a sentence, behind "has" or "have"."""
        step, at = self.doing["step"], f" ({self.at})" if self.at else ""
        if self.left is not None:
            if self.left["cause"] == PASSED_OVER:
                return f"passed over the shards of step {step} (`continue`, in the loop at {self.left['place']})"
            how = _CAUSES.get(str(self.left["cause"]), str(self.left["cause"]))
            place = f" at {self.left['place']}" if self.left["place"] else ""
            return f"left the loop after step {self.left['step']} ({how}{place})"
        when = f"{'in' if self.doing['in_step'] else 'after'} step {step}"
        if self.call:
            return f"come to {self.call} {when}{at}"
        return f"gone on to step {step}{at}" if self.doing["in_step"] else f"gone on {when}{at}"


def parted(reports: Sequence[RankReport], waited_s: float) -> Parted | None:
    """Which ranks have parted; None: none is known to have.

    Args:
        reports: of the ranks of a run.
        waited_s: for how long a rank has waited: later than ``ALL_SEEN_S``, what a rank does that is neither here nor there is
            said to be unknown.
    """
    ranks = [_Rank(report) for report in reports if "meeting" in report.record["doing"]]
    here = [rank for rank in ranks if rank.call]
    if not here:
        return None
    newest = max(rank.number for rank in here)
    here = [rank for rank in here if rank.number == newest]
    others = [rank for rank in ranks if rank.number < newest or not rank.call]
    gone_on = [rank for rank in others if all(_never_comes(rank, waiting) for waiting in here)]
    differ = len({(rank.call, rank.doing["step"]) for rank in here}) > 1
    if not (gone_on or differ):
        return None
    is_all_known = len(here) + len(gone_on) >= int(reports[0].record["world_size"])
    if not is_all_known and waited_s < ALL_SEEN_S:
        return None
    return _told(here, gone_on)


def _never_comes(rank: _Rank, waiting: _Rank) -> bool:
    """Whether a rank itself waits for one that waits at a meeting."""
    if rank.number >= waiting.number:
        return False
    if rank.doing["in_phase"]:
        return (rank.doing["step"], rank.doing["phase"]) >= waiting.comes_next
    collective, peer = rank.report.record["collective"], waiting.report
    if collective is None or not rank.report.is_waiting or collective.get("group") != DEFAULT_GROUP:
        return False
    begun = [int(number) for number, _, group in peer.record.get("recent") or () if group == DEFAULT_GROUP]
    is_fresh = float(peer.record["time_s"]) - float(peer.record.get("since_s", 0.0)) >= _RECORDED_S
    return is_fresh and bool(begun) and max(begun) < int(collective["number"])


def _told(here: Sequence[_Rank], gone_on: Sequence[_Rank]) -> Parted:
    left = [rank for rank in here if rank.left is not None]
    if len(left) == len(here) and not gone_on and len({str(rank.left) for rank in left}) == 1:
        left = []  # by the same way: they differ in what they do now
    first = left or here
    groups: dict[str, list[int]] = {}
    for rank in [*first, *(rank for rank in here if rank not in first), *gone_on]:
        groups.setdefault(rank.where, []).append(rank.report.rank)
    said = [f"{name_ranks(sorted(which))} {'has' if len(which) == 1 else 'have'} {w}" for w, which in groups.items()]
    cause = str(left[0].left["cause"]) if left and left[0].left is not None else ""
    remedy = _CALLED if not left else _PASSED if cause == PASSED_OVER else _LEFT
    lines = [f"the ranks have parted: {', and '.join(said)}.", remedy]
    places = {rank.report.rank: str(rank.left["place"]) if rank.left else rank.at for rank in [*here, *gone_on]}
    return Parted(
        "\n".join(lines),
        tuple(sorted(rank.report.rank for rank in first)),
        cause,
        {rank: place for rank, place in sorted(places.items()) if place},
    )
