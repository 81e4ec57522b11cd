"""Ranks that have parted: some have left a loop, or make a call that all must make together, while
others continue with their steps. Pure.

This is certain as soon as it shows; no time has to pass. A rank that waits for all others outside
its steps (``loop.meeting``) takes part in no phase before they have come. A rank that is in a phase
of a later step comes only after it, and the phase needs the first rank. So each needs the other::

    rank 0:  step 9 ... break ... meets before evaluate() ---- needs rank 1 here --+
    rank 1:  step 9 ... step 10: phase 0 --- needs rank 0's gradients ------------+
"""

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
"""The seconds within which every rank that runs has written its black box."""
_RECORDED_S = 2.0
"""The seconds without movement after which a rank has recorded its newest collectives."""
_LEFT = (
    "Every rank must leave the loop after the same step. Decide by a value that is equal on all ranks (batch['loss'], an "
    "evaluation's result). For a local condition (a clock, a signal, a file): `if team.any(condition): break`."
)
_PASSED = (
    "Every rank must run the loop over batch.shards in the same steps. Let `continue` depend on a value that is equal on all "
    "ranks, or put it after that loop."
)
_CALLED = "Every rank must make this call at the same point. Look for an `if` that is true on some ranks only."
_ENDED = "All ranks must exit together. Let the exit depend on a value that is equal on all ranks."
_CAUSES = {"": "its iterator was dropped", EXCEPTION: "an error"}


@dataclass(frozen=True)
class _Rank:
    """A rank's position relative to the loop and the meetings."""

    report: RankReport

    @property
    def doing(self) -> Mapping[str, Any]:
        return self.report.record["doing"]  # type: ignore[no-any-return]

    @property
    def left(self) -> Mapping[str, Any] | None:
        """How the rank left its loop early; None: it has not."""
        left = self.doing.get("left")
        return left if isinstance(left, dict) and left.get("cause") != ENDED else None

    @property
    def number(self) -> int:
        """The number of the rank's newest meeting."""
        return int(self.doing["meeting"]["number"])

    @property
    def call(self) -> str:
        """The call before which the rank waits for the others; empty: it is elsewhere."""
        return str(self.doing["meeting"]["call"])

    @property
    def comes_next(self) -> tuple[int, int]:
        """The step and the number of the phase in which it would take part next."""
        if isinstance(left := self.doing.get("left"), dict) and not self.doing["in_step"]:
            return int(left["next_step"]), int(left["next_phase"])
        return (self.doing["step"], self.doing["phase"]) if self.doing["in_step"] else (self.doing["step"] + 1, 0)

    @property
    def exit(self) -> str:
        """The line that called ``sys.exit``; empty: none did, or the rank waits elsewhere than at
        its end."""
        return str(self.doing.get("exit", "")) if self.call and not users_location(self.report.frames) else ""

    @property
    def at(self) -> str:
        """The rank's line in the script."""
        return users_location(self.report.frames) or self.exit

    @property
    def place(self) -> str:
        """The line at which the rank left its loop, otherwise its present line."""
        return str(self.left["place"]) if self.left is not None else self.at

    @property
    def where(self) -> str:
        """The position as text, to follow "has" or "have"."""
        step, at = self.doing["step"], f" ({f'{EXIT} at ' if self.exit else ''}{self.at})" if self.at else ""
        if self.left is not None:
            if self.left["cause"] == PASSED_OVER:
                return f"skipped the shards of step {step} (`continue` in the loop at {self.left['place']})"
            how = _CAUSES.get(str(self.left["cause"]), str(self.left["cause"]))
            place = f" at {self.left['place']}" if self.left["place"] else ""
            return f"left the loop after step {self.left['step']} ({how}{place})"
        when = f"{'in' if self.doing['in_step'] else 'after'} step {step}"
        if self.call:
            return f"reached {self.call} {when}{at}"
        return f"continued to step {step}{at}" if self.doing["in_step"] else f"continued {when}{at}"


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
    """The ranks whose meetings are known. (A script without ``join`` has none.)"""
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
        left = []  # all left in the same way, so the difference is in what they do now
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
        text=f"the ranks have parted and wait for each other: {', and '.join(said)}.\n{remedy}",
        ranks=tuple(sorted(rank.report.rank for rank in first)),
        cause=cause,
        places={rank.report.rank: place for rank in everyone if (place := rank.place)},
        calls={rank.report.rank: call for rank in everyone if (call := rank.call or rank.report.call)},
        seconds=waited_s,
    )
