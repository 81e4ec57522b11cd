"""What the ranks of a run are doing, from their black boxes: who waits, who is missing, and ranks that do the same together."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.explain.black_box import read_box
from lockstep.explain.sampler import EVERY_S, waits_at
from lockstep.machine.identity import shared_by

DIRECTORY = "blackbox"
_LATE_S = 6 * EVERY_S
"""A record older than this is from before its process stopped reporting."""
_PACKAGE = Path(__file__).parents[1]
_LAUNCH = f"{_PACKAGE}/launch/"


def box_path(run_dir: Path, rank: int) -> Path:
    """Where a rank's black box is."""
    return run_dir / DIRECTORY / f"rank-{rank}.box"


@dataclass(frozen=True)
class RankReport:
    """What one rank was doing when it was looked at last."""

    record: Mapping[str, Any]
    state: str
    """``running``; ``late``: it has not reported for some seconds; ``stopped`` by a signal; ``gone``; or how it ended."""
    late_s: float
    """For how long it has not reported."""
    is_here: bool = True
    """Whether its process is one of this machine."""

    @property
    def rank(self) -> int:
        """Of the process."""
        return int(self.record["rank"])

    @property
    def frames(self) -> list[tuple[str, int, str]]:
        """Of the main thread, innermost first."""
        return [(str(file), int(line), str(name)) for file, line, name in self.record["stack"]]

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for other ranks."""
        if self.state not in ("running", "late"):
            return False
        return waits_at(self.frames, self.record["collective"])

    @property
    def still_s(self) -> float:
        """For how long its main thread had not moved when it was looked at last, and since."""
        return float(self.record["time_s"]) - float(self.record["since_s"]) + self.late_s

    def describe(self) -> str:
        """What it does, in words."""
        doing = self.record["doing"]
        step = doing.get("step", 0)
        at = f"in step {step}" if doing.get("in_step") else (f"after step {step}" if step else "before the first step")
        of = f" of step {step}" if doing.get("in_step") else f", {at}"
        if self.state == "gone":
            return f"its process is gone, without a word: it was killed {at}, perhaps because memory ran out (see dmesg)"
        if self.state == "stopped":
            return f"stopped by a signal {at}: `kill -CONT {self.record['pid']}` lets it run on"
        if self.state not in ("running", "late"):
            return f"{self.state} {at}"
        how_long = f"for {self.still_s:.0f} s" if self.still_s >= 2 else "just now"
        late = ""
        if self.state == "late" and self.is_here:
            late = " (its interpreter does not answer: C code that holds the GIL, or swapping)"
        elif self.state == "late":
            late = f" (it has not reported for {self.late_s:.0f} s)"
        if self.is_waiting:
            collective = self.record["collective"]
            what = "for the other ranks" if collective is None else f"in {collective['text']}"
            return f"waiting {what}{of}, {how_long}{late}"
        return f"{doing['activity']}{of}, {how_long}{late}"

    def stack(self) -> list[str]:
        """The lines to show, outermost first: from the script's own first line on. Of a rank that waits only the script's."""
        lines: list[str] = []
        for file, line, name in reversed(self.frames):
            if file.startswith(_LAUNCH):  # what has started the script
                lines = []
                continue
            if self.is_waiting and (file.startswith(f"{_PACKAGE}/") or "/torch/" in file):
                continue
            lines.append(f"{file}:{line} in {name}")
            source = linecache.getline(file, line).strip()
            if source:
                lines.append(f"    {source}")
        return lines


def read_reports(
    run_dir: Path,
    now_s: float,
    look_up: Callable[[int, float], str],
    ask: Callable[[Mapping[str, Any]], Sequence[tuple[str, int, str]] | None],
) -> list[RankReport]:
    """What the ranks of the newest launch of a run were doing, by rank.

    Args:
        run_dir: of the run.
        now_s: seconds since 1970.
        look_up: what has become of a process of this machine, from its id and when it last reported: ``running``,
            ``stopped`` or ``gone``. Those of other machines cannot be looked up.
        ask: the stack of a process of this machine that has not reported for a while, from its record (``asking.ask``).
    """
    records = [record for path in (run_dir / DIRECTORY).glob("rank-*.box") if (record := read_box(path)) is not None]
    if not records:
        return []
    launch = max(records, key=lambda record: float(record["began_s"]))["launch"]  # of an earlier one more ranks may be left
    found = []
    for record in records:
        if record["launch"] != launch:
            continue
        late_s = max(0.0, now_s - float(record["time_s"]) - EVERY_S)
        state = record["ended"]
        is_here = bool(record["machine"]) and record["machine"] == shared_by("pid")
        if state is None:
            state = look_up(int(record["pid"]), float(record["time_s"])) if is_here else "running"
            if state == "running" and late_s > _LATE_S:
                state = "late"
                if is_here and (stack := ask(record)):
                    record = {**record, "stack": stack, "collective": None}
        found.append(RankReport(record, state, late_s, is_here))
    return sorted(found, key=lambda report: report.rank)


def grouped(reports: Sequence[RankReport]) -> list[list[RankReport]]:
    """Ranks that do the same, at the same line, together: those that are missing first, then the smaller groups."""
    groups: dict[Any, list[RankReport]] = {}
    for report in reports:
        collective = report.record["collective"]
        what = collective and (collective["name"], collective["number"])
        groups.setdefault((report.state, tuple(report.frames), what), []).append(report)
    return sorted(groups.values(), key=lambda group: (group[0].is_waiting, len(group), group[0].rank))


def name_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``; ``ranks 0 and 2 to 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    names = [name for span in spans for name in ([f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span))]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
