"""Ranks that have parted: some have left a loop, or do what all must do together, and others go on
with their steps. Pure.

It is certain as soon as it shows, and needs no time to pass: a rank that waits for all others
outside of its steps (``loop.meeting``) takes part in no phase of a step before they have come, and
one that is in such a phase comes only after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep._base.reports import PARTED, Report
from lockstep._loop.departure import ENDED, EXCEPTION, EXIT, PASSED_OVER
from lockstep._tools.explain.frames import users_location
from lockstep._tools.explain.rank_reports import DEFAULT_GROUP, RankReport
from lockstep._world.machine.sizes import name_ranks

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
_ENDED = "All ranks must end together: let what ends the program be the same on all of them."
_CAUSES = {"": "its iterator was dropped", EXCEPTION: "an error"}


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
    def exit(self) -> str:
        """Where it has called ``sys.exit``; empty: it has not, or waits elsewhere than at its
        end."""
        return str(self.doing.get("exit", "")) if self.call and not users_location(self.report.frames) else ""

    @property
    def at(self) -> str:
        """Its line in the script."""
        return users_location(self.report.frames) or self.exit

    @property
    def place(self) -> str:
        """Where it has left its loop, or else is in the script."""
        return str(self.left["place"]) if self.left is not None else self.at

    @property
    def where(self) -> str:
        """For a sentence, behind "has" or "have"."""
        step, at = self.doing["step"], f" ({f'{EXIT} at ' if self.exit else ''}{self.at})" if self.at else ""
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


def parted(reports: Sequence[RankReport], waited_s: float) -> Report | None:
    """Which ranks have parted, where some wait for all others at a meeting; None: none is known to
    have.

    Args:
        reports: of the ranks of a run.
        waited_s: for how long a rank has waited: later than ``ALL_SEEN_S``, a rank that is neither
            here nor there is left out.
    """
    ranks = _of_runs(reports)
    newest = max((rank.number for rank in ranks if rank.call), default=0)
    here = [rank for rank in ranks if rank.call and rank.number == newest]
    if not here:
        return None
    others = [rank for rank in ranks if rank not in here]
    gone_on = [rank for rank in others if all(_never_comes(rank, waiting) for waiting in here)]
    differ = len({(rank.call, rank.doing["step"]) for rank in here}) > 1
    is_all_known = len(here) + len(gone_on) >= int(reports[0].record["world_size"])
    if not (gone_on or differ) or (not is_all_known and waited_s < ALL_SEEN_S):
        return None
    return _told(here, gone_on, waited_s)


def left_apart(waiting: Sequence[RankReport], waited_s: float) -> Report | None:
    """Which ranks have left their loop, and wait in a collective of the script's, while all others
    wait in a step; None: it is not so.

    ``waiting``: all ranks.
    """
    ranks = _of_runs(waiting)
    here = [rank for rank in ranks if rank.left is not None and not rank.doing["in_step"]]
    gone_on = [rank for rank in ranks if all(_is_in_later_phase(rank, other) for other in here)]
    if not here or not gone_on or len(here) + len(gone_on) < len(waiting):
        return None
    return _told(here, gone_on, waited_s)


def _of_runs(reports: Sequence[RankReport]) -> list[_Rank]:
    """Those of which is known where they meet. (A script without ``join`` has no meetings.)"""
    needed = ("meeting", "in_phase", "in_step", "step", "phase")
    return [_Rank(report) for report in reports if all(name in report.record["doing"] for name in needed)]


def _is_in_later_phase(rank: _Rank, waiting: _Rank) -> bool:
    """Whether a rank is in a phase that needs one which is outside of its steps."""
    return bool(rank.doing["in_phase"] and (rank.doing["step"], rank.doing["phase"]) >= waiting.comes_next)


def _never_comes(rank: _Rank, waiting: _Rank) -> bool:
    """Whether a rank itself waits for one that waits at a meeting."""
    if rank.number >= waiting.number:
        return False
    if rank.doing["in_phase"]:
        return _is_in_later_phase(rank, waiting)
    collective, peer = rank.report.record["collective"], waiting.report
    if collective is None or not rank.report.is_waiting or collective.get("group") != DEFAULT_GROUP:
        return False
    begun = [int(number) for number, _, group, *_ in peer.record.get("recent") or () if group == DEFAULT_GROUP]
    is_fresh = float(peer.record["time_s"]) - float(peer.record.get("since_s", 0.0)) >= _RECORDED_S
    return is_fresh and bool(begun) and max(begun) < int(collective["number"])


def _told(here: Sequence[_Rank], gone_on: Sequence[_Rank], waited_s: float) -> Report:
    left = [rank for rank in here if rank.left is not None]
    if not gone_on and len(left) == len(here) and len({str(rank.left) for rank in left}) == 1:
        left = []  # in the same way: they differ in what they do now
    first = left or [rank for rank in here if rank.exit] or here
    groups: dict[str, list[int]] = {}
    for rank in [*first, *(rank for rank in here if rank not in first), *gone_on]:
        groups.setdefault(rank.where, []).append(rank.report.rank)
    said = [f"{name_ranks(sorted(which))} {'has' if len(which) == 1 else 'have'} {where}" for where, which in groups.items()]
    cause = str(left[0].left["cause"]) if left and left[0].left is not None else ""
    if not left and any(rank.exit for rank in here):
        cause = EXIT
    remedy = (_ENDED if cause else _CALLED) if not left else _PASSED if cause == PASSED_OVER else _LEFT
    everyone = sorted([*here, *gone_on], key=lambda rank: rank.report.rank)
    return Report(
        kind=PARTED,
        text=f"the ranks have parted: {', and '.join(said)}.\n{remedy}",
        ranks=tuple(sorted(rank.report.rank for rank in first)),
        cause=cause,
        places={rank.report.rank: place for rank in everyone if (place := rank.place)},
        calls={rank.report.rank: call for rank in everyone if (call := rank.call or rank.report.call)},
        seconds=waited_s,
    )
