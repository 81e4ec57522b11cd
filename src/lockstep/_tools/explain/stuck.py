"""Detects that a run makes no progress, and reports which ranks wait for which, long before
anything times out.

Each rank watches only itself. A rank that has waited for too long reads the black boxes of all
ranks, and the lowest of the waiting ranks reports. Nothing is communicated, since communication
is what hangs.

::

    rank 0   all_gather ....................... waits > limit: reads boxes 0, 1, 2; is lowest: warns
    rank 1   reads a file ..................... writes its own box twice a second
    rank 2   all_gather ....................... waits > limit: reads boxes 0, 1, 2; rank 0 warns
             |--------------- limit_s --------|

Two properties keep false alarms away. The limit grows with the usual time of a step (``limit_s``).
And a rank that still does something (computes, reads, writes, has a child process that does) may
take two minutes, because an evaluation or a save by rank 0 alone is common and right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep._base.reports import LOADER, MISMATCH, WAITING, Report
from lockstep._base.tracebacks.frames import Frame, owner
from lockstep._launch.echoes import is_echo_in
from lockstep._tools.explain.deadlock import CERTAIN_S, deadlocked
from lockstep._tools.explain.frames import MOST_FRAMES, users_location
from lockstep._tools.explain.loader_workers import CERTAIN, is_loading
from lockstep._tools.explain.mismatch import SAME_CALLS, Difference, describe_call, first_mismatch
from lockstep._tools.explain.parted import left_apart
from lockstep._tools.explain.rank_reports import POLLS, RankReport, grouped, title
from lockstep._tools.explain.reading import read_reports
from lockstep._tools.explain.sampler import call_in, is_communicating, transfer_in
from lockstep._tools.explain.stall_notices import StallNotices
from lockstep._world.machine.sizes import name_ranks

LEAST_S = 10.0
"""The least limit, in seconds, however brief the steps are."""
BUSY_S = 120.0
"""The seconds for which a rank that is working may keep the others waiting without a report."""
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""The delay between two looks of a rank that has waited for too long, until it knows for whom."""
_ASKED_S = 3.0
"""The seconds for which a rank that was asked to stop still waits for what may come."""
_CERTAIN_S = 2.0
"""The limit of a rank that was asked to stop, where what it waits for certainly never comes by
itself."""
_SURE_S = 1.5
"""The seconds for which that rank still waits after the report: where a whole run was suspended,
its processes continue one by one."""
_LATER_S = 2.0
"""The seconds by which the other ranks end after the one that reports."""
_STEPS = 5
"""The limit as a number of usual steps."""
_FIRST_S = 60.0
"""The limit while the time of a step is unknown: the first steps compile and read most."""
CLEARER_S = 10.0
"""The seconds after which a rank of which little is known is examined again."""
_KNOWN_AFTER = 3
"""The number of steps after which their usual time is known."""
_TIMED_OUT_S = 1.0
"""The least wait of a rank that has timed out."""
_TO_SET_UP = 5
"""The number of collectives of DistributedDataParallel's constructor, which compares the ranks'
models and broadcasts rank 0's."""
_UNRECORDED = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh", "monitored_barrier")
"""Functions that wait for other ranks without a collective that PyTorch's recorder knows."""
_DEBUGGERS = ("pdb.py", "bdb.py", "/debugpy/", "/pydevd", "/IPython/")


def limit_s(step_s: float, num_steps: int, *, is_asked: bool = False) -> float:
    """How long ranks may wait for others before that is reported, in seconds.

    Args:
        step_s: the usual time of a step, in seconds.
        num_steps: taken in this launch.
        is_asked: whether the run was asked to stop, so that no more of its first steps is lost than
            is done already.
    """
    if num_steps >= _KNOWN_AFTER:
        return max(LEAST_S, _STEPS * step_s)
    return LEAST_S if is_asked else _FIRST_S


def limit_of_script_s(record: Mapping[str, Any]) -> float:
    """The limit for a script that does not use lockstep, from a rank's record. Its collectives
    count as brief steps, but for the first ones, which belong to the set-up."""
    return limit_s(0.0, record["doing"].get("num_done", 0) - _TO_SET_UP)


class StuckWatch:
    """What a rank does while it waits: it reports who waits for whom, and ends if it waits for what
    cannot come.

    Args:
        run_dir: of the run.
        rank: of this process.
        limit_s: how long it may wait, in seconds, given whether it was asked to stop.
        asked: whether this process was asked to stop.
        progress: how far this process is in its steps.
        notices: prints warnings and all-clears, on the lowest of the waiting ranks.
        end: called when this rank cannot finish its step, with the report, whether this rank is the
            one that prints it, and whether it is a deadlock; otherwise it was asked to stop. Does
            not return.
    """

    def __init__(
        self,
        run_dir: Path,
        rank: int,
        limit_s: Callable[[bool], float],
        asked: Callable[[], bool],
        progress: Callable[[], object],
        notices: StallNotices,
        end: Callable[[str, bool, bool], object],
    ) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._limit_s = limit_s
        self._asked = asked
        self._progress = progress
        self._end = end
        self._still_s = math.inf
        self._notices = notices
        self._warned_at: object = None
        """The progress of this process when it warned."""
        self._told = ""
        """The text of the report about the present wait; empty: none yet."""
        self._has_warned = False
        """Whether the report about the present wait was a warning."""
        self._is_vague = False
        """Whether that report was vague."""
        self._is_certain = False
        """Whether the reported wait certainly never ends by itself."""
        self._is_first = False
        """Whether this rank is the one that reports."""
        self._pause_s = self._next_s = 0.0
        self._dead_s = self._asked_s = math.inf
        """How long this rank had waited when it was first seen in a deadlock, and when it was asked
        to stop, in seconds."""

    def look(self, still_s: float) -> None:
        """Called again and again.

        ``still_s``: for how long this rank has waited, for other ranks or for loader workers; 0: it
        does not."""
        if self._notices.has_warned and self._progress() != self._warned_at:
            self._notices.all_clear()
        if still_s == 0 or still_s < self._still_s:  # it has moved
            self._told, self._pause_s, self._next_s = "", _LEAST_PAUSE_S, 0.0
            self._dead_s = self._asked_s = math.inf
        self._still_s = still_s
        asked = self._asked()
        if still_s >= self._next_s and still_s > (_CERTAIN_S if asked else self._limit_s(asked)):
            self._report(still_s, is_certain=still_s <= self._limit_s(asked))
        # The rank that reports ends first. If another one ended before it, its communication would
        # fail, and that error would hide the reason.
        later_s = 0.0 if self._is_first else _LATER_S
        if still_s - self._dead_s >= CERTAIN_S + later_s:
            self._end(self._told, self._is_first, True)
        if asked and self._told:
            self._asked_s = min(still_s, self._asked_s)
            waited_s = still_s - self._asked_s - later_s
            if waited_s >= _ASKED_S or (waited_s >= _SURE_S and self._is_certain and _is_certain(self._look_at_all()[1])):
                self._end(self._told, self._is_first, False)

    def _look_at_all(self) -> tuple[Sequence[RankReport], Report | None]:
        reports = read_reports(self._run_dir, time.time())
        return reports, who_waits(reports, str(self._run_dir))

    def _report(self, still_s: float, *, is_certain: bool) -> None:
        """Report who waits for whom. ``is_certain``: only a wait that certainly never ends by
        itself."""
        reports, report = self._look_at_all()
        if is_certain and not _is_certain(report):
            self._next_s = still_s + _LEAST_PAUSE_S
            return
        self._is_first = self._rank == min(
            (report.rank for report in reports if report.is_waiting or _loads(report)), default=None
        )
        if report is None:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._next_s, self._dead_s = still_s + self._pause_s, math.inf
            return
        is_clearer = self._is_vague and not is_vague(report)
        if (not self._told or (report.is_warning and not self._has_warned) or is_clearer) and self._is_first:
            self._warned_at = self._progress()
            self._notices.warn(report, still_s)
        self._told, self._is_certain, self._has_warned = report.text, _is_certain(report), report.is_warning
        self._is_vague = is_vague(report)
        is_dead = self._rank in deadlocked(reports)
        self._dead_s = min(still_s, self._dead_s) if is_dead else math.inf
        if is_dead:
            self._next_s = still_s + CERTAIN_S
        elif self._is_vague:
            self._next_s = still_s + CLEARER_S
        else:
            self._next_s = math.inf if report.is_warning else max(BUSY_S, still_s + 1.0)


def who_waits(
    reports: Sequence[RankReport], run_dir: str = "", *, is_over: bool = False, is_here: bool = False
) -> Report | None:
    """The report on which ranks wait for which others, and what those are doing; None: none are
    missing, or they have a good reason.

    Args:
        reports: of the ranks.
        run_dir: the argument of ``lockstep stacks``; empty: it needs none.
        is_over: whether the ranks have timed out; otherwise missing ones may be working, or in a
            debugger.
        is_here: whether ``lockstep stacks`` shows only ranks of the machine on which it is called.
    """
    waiting, missing = _divided([_before_echo(report) for report in reports])
    reports = [*waiting, *missing]
    if missing and all(map(_waits_behind, missing)) and first_mismatch([report.record for report in reports]) is not None:
        # Ranks that called different collectives have counted different calls, so a lower number
        # does not mean that its rank is behind.
        waiting, missing = sorted(reports, key=lambda report: report.rank), []
    if not is_over and missing and all(map(_loads, reports)):
        waiting, missing = missing, []  # each waits for its own loader, not for another rank
    if not waiting or (not is_over and any(_is_debugged(report) for report in missing)):
        return None
    still_s = max(report.still_s for report in waiting)
    if is_over and still_s < _TIMED_OUT_S:
        return None  # something else has failed
    verb = "waits" if len(waiting) == 1 else "wait"
    whose = "the ranks of one machine" if is_here else "all ranks"
    shown = [] if is_over else [f"Run `{f'lockstep stacks {run_dir}'.strip()}` to see {whose} at any time."]
    if not missing and _loads(waiting[0]):
        if still_s < BUSY_S and not all(map(_is_still, waiting)):
            return None
        kind, about = LOADER, waiting
        lines = [
            f"{_names(waiting)} {verb} for the next batch of {'its' if len(waiting) == 1 else 'their'} loader.",
            *_details(waiting),
        ]
    elif not missing and (apart := left_apart(waiting, still_s)) is not None:
        return apart
    elif not missing:
        return _all_wait(waiting, still_s, is_over=is_over, shown=shown)
    elif not is_over and still_s < BUSY_S and not any(map(_is_still, missing)) and not deadlocked(reports):
        return None  # the missing ranks are working: rank 0 evaluates, say
    else:
        kind, about = LOADER if all(map(_loads, missing)) else WAITING, missing
        lines = [f"{_names(waiting)} {verb} for {_names(missing)}.", *_details(missing)]
    return Report(
        kind=kind,
        text="\n".join([f"no progress for {still_s:.0f} s: {lines[0]}", *lines[1:], *shown]),
        ranks=tuple(report.rank for report in about),
        cause=about[0].cause if about else "",
        places={report.rank: at for report in reports if (at := report.place)},
        calls={report.rank: call for report in reports if (call := call_of(report))},
        seconds=still_s,
        is_warning=is_over or kind == LOADER or still_s >= BUSY_S or not _may_work(missing),
    )


def is_vague(report: Report) -> bool:
    """Whether a report names a rank that does not answer without its line. On a machine with too
    much to do, it may take several looks until it is proven that C code holds the interpreter's
    lock, and until the rank gives its stack."""
    return report.cause in ("silent", "holds_gil") and any(rank not in report.places for rank in report.ranks)


def _may_work(missing: Sequence[RankReport]) -> bool:
    """Whether the ranks that others wait for work, or may work since they poll."""
    return all(report.cause == POLLS for report in missing if _is_still(report))


def _is_certain(report: Report | None) -> bool:
    """Whether what ranks wait for certainly never comes by itself."""
    return report is not None and report.kind == LOADER and report.cause in CERTAIN


def _before_echo(report: RankReport) -> RankReport:
    """A rank that has failed only because others did not come to a collective: it waits for them as
    before."""
    is_echo = report.state == "failed" and is_echo_in(str(report.record.get("error", "")))
    return replace(report, state="running") if is_echo else report


def _divided(reports: Sequence[RankReport]) -> tuple[list[RankReport], list[RankReport]]:
    """The ranks that wait for others, and the ranks that do not."""
    reports = [
        replace(report, is_behind=_is_behind(report, reports) or _has_ended_early(report, reports)) for report in reports
    ]
    waiting = [report for report in reports if report.is_waiting]
    return waiting, [report for report in reports if not report.is_waiting]


def _names(reports: Sequence[RankReport]) -> str:
    return name_ranks([report.rank for report in reports])


def _details(reports: Sequence[RankReport]) -> list[str]:
    """What ranks do, and where."""
    lines = []
    for group in grouped(reports):
        lines.append(f"  {title(group)}: {group[0].describe()}")
        lines += [f"    {line}" for line in group[0].stack(short=True)]
    return lines


def _loads(report: RankReport) -> bool:
    """Whether a rank waits for nothing but its next batch."""
    return report.state == "running" and not report.is_waiting and is_loading(report.frames, report.record["doing"])


def _all_wait(waiting: Sequence[RankReport], still_s: float, *, is_over: bool, shown: Sequence[str]) -> Report | None:
    """A report of ranks that all wait; None: in one call of all of them, which may take long, as
    far as is known.

    ``shown``: lines to end with.
    """
    is_certain = bool(deadlocked(waiting))
    first = first_mismatch([report.record for report in waiting])
    known = {_certain_call(report) for report in waiting}
    transfers = {name for report in waiting if (name := transfer_in(report.frames))}
    differ = is_certain or first is not None or len(known - {""}) > 1
    is_news = all(report.still_s >= LEAST_S for report in waiting) and len(waiting) == int(waiting[0].record["world_size"])
    is_news = is_news and ("" in known or len(known) > 1 or still_s >= BUSY_S)
    if not differ and not transfers and (is_over or not is_news):
        return None
    lines = ["all ranks wait, because they called different collectives."]
    if transfers:
        lines = [f"all ranks wait for each other: {' and '.join(sorted(transfers))} without a counterpart."]
    elif not differ:
        lines = ["all ranks wait, and their calls do not differ as far as is known."]
    called: dict[str, list[RankReport]] = {}
    for report in waiting:
        call = call_of(report) or ("exchanging gradients" if is_certain else "an unknown call")
        called.setdefault(f"{call}{_where(report.frames)}", []).append(report)
    for call, group in called.items():
        lines.append(f"  {_names(group)}: {call}")
        handling = [report for report in group if report.handles]
        lines += [f"    {_names([report])} called it{report.handles}" for report in handling]
    if first is not None and not (_wait_in(waiting, first) and len(called) > 1):
        lines.append(f"  First known difference: {first}.")
        if not _wait_in(waiting, first) and all(call.at for call in first.calls.values()):
            lines += [f"    {line}" for line in first.lines()]
    remedy = SAME_CALLS if first is None else first.remedy
    lines.append(f"Each recv needs a send from another rank to this one. {remedy}" if transfers else remedy)
    places = {report.rank: at for report in waiting if (at := users_location(report.frames))}
    calls = {report.rank: call for report in waiting if (call := call_of(report))}
    if first is not None:
        places |= {rank: call.at for rank, call in first.calls.items() if call.at}
        calls |= {rank: describe_call(call) for rank, call in first.calls.items()}
    return Report(
        kind=MISMATCH if differ else WAITING,
        text="\n".join([f"no progress for {still_s:.0f} s: {lines[0]}", *lines[1:], *shown]),
        ranks=_odd(list(called.values())) if first is None else first.odd_ranks,
        cause=first.aspect if first is not None else _aspect(waiting) if differ and len(called) > 1 else "",
        places=places,
        calls=calls,
        seconds=still_s,
    )


def _aspect(waiting: Sequence[RankReport]) -> str:
    """The property in which calls differ that are of different groups, or not all known."""
    collectives = [report.record["collective"] for report in waiting]
    kinds = {each and str(each["text"]).partition(" ")[0] for each in collectives}
    groups = {each and each.get("group") for each in collectives}
    return "group" if len(kinds) == 1 and None not in kinds and len(groups) > 1 else "kind"


def _wait_in(reports: Sequence[RankReport], difference: Difference) -> bool:
    """Whether ranks wait in the collective that differs, so that it is known already where they
    called it."""
    pending = {(report.record["collective"] or {}).get("number") for report in reports if report.rank in difference.calls}
    return pending == {difference.number}


def _odd(groups: Sequence[Sequence[RankReport]]) -> tuple[int, ...]:
    """The ranks that are not in the one group of more than half of them; all if there is none."""
    most = max(groups, key=len)
    all_ranks = sorted(report.rank for group in groups for report in group)
    if len(groups) < 2 or 2 * len(most) <= len(all_ranks):
        return tuple(all_ranks) if len(groups) > 1 else ()
    return tuple(rank for rank in all_ranks if rank not in {report.rank for report in most})


def call_of(report: RankReport) -> str:
    """The call in which a rank waits, for the user; empty: unknown, or only known from an earlier
    report."""
    if report.state == "late" and not report.is_now:
        return ""
    return report.call or str(report.record.get("message", "")) or call_in(report.frames)


def _certain_call(report: RankReport) -> str:
    """The call in which it is certain that a rank waits; empty: it is none, or one that PyTorch's
    recorder should know."""
    call, inside = call_of(report), call_in(report.frames)
    return call if call != inside or inside in _UNRECORDED else ""


def _where(frames: Sequence[Frame]) -> str:
    if location := users_location(frames):
        return f", at {location}"
    is_whole = 0 < len(frames) < MOST_FRAMES
    has_program = any(owner(file) == "library" for file, _, _ in frames)
    return ", after its script finished" if is_whole and not has_program else ""


def _is_behind(report: RankReport, reports: Sequence[RankReport]) -> bool:
    """Whether a rank in the script's own code has not yet begun a collective in which another one
    waits."""
    if is_communicating(report.frames):
        return False
    begun = report.record.get("begun") or {}
    pending = [peer.record["collective"] for peer in reports if peer is not report and peer.record["collective"] is not None]
    return any(
        collective.get("group") in begun and int(begun[collective["group"]]) < int(collective["number"])
        for collective in pending
    )


def _waits_behind(report: RankReport) -> bool:
    """Whether a rank that is behind others waits in a collective itself."""
    return report.is_behind and report.state == "running" and report.record["collective"] is not None


def _has_ended_early(report: RankReport, reports: Sequence[RankReport]) -> bool:
    """Whether a rank's program has finished while others wait in theirs, for a collective that it
    will never call."""
    if not (report.ending and report.call):
        return False
    waiting = [peer for peer in reports if peer.is_waiting and not peer.ending]
    return bool(waiting) and all(peer.call not in ("", report.call) for peer in waiting)


def _is_still(report: RankReport) -> bool:
    """Whether a rank that others wait for does nothing, as far as can be seen."""
    if report.state not in ("running", "late"):
        return True
    if report.loader_cause in CERTAIN:
        return True
    if report.state == "late" and report.cause != "silent":
        return report.idle_s > 0
    return report.idle_s >= LEAST_S


def _is_debugged(report: RankReport) -> bool:
    if report.facts is not None and report.facts.state == "tracing-stop":
        return True
    return any(name in file for file, _, _ in report.frames for name in _DEBUGGERS)
