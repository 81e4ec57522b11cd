"""What the ranks of a run are doing, from their black boxes: who waits, who is missing, and ranks that do the same together."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.explain.asking import SIGNAL
from lockstep.explain.black_box import read_box
from lockstep.explain.loader_workers import LoaderWorker, busy_workers, waits_for_loader
from lockstep.explain.process import Facts, facts_of
from lockstep.explain.sampler import BUSY_BYTES, EVERY_S, waits_at
from lockstep.machine.identity import shared_by
from lockstep.machine.sizes import size
from lockstep.stopping import catches

DIRECTORY = "blackbox"
_LATE_S = 6 * EVERY_S
"""A record older than this is from before its process stopped reporting."""
_PACKAGE = Path(__file__).parents[1]
_LAUNCH = f"{_PACKAGE}/launch/"
_BELOW = ("/torch/", "/multiprocessing/", "/selectors.py", "/threading.py", "/queue.py")
"""What a script waits in."""
ENDING = "in its exit handlers"
_STILL_S = 2.0
"""Of a rank that has not moved for so long it is asked what it waits for."""
_MOST_LOADERS = 3
_OUTERMOST, _INNERMOST = 4, 6
"""Lines of a stack in a report."""


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
    facts: Facts | None = None
    """What the kernel knows of it, if it is here and does not move."""
    loaders: Sequence[LoaderWorker] = ()
    """Its loader workers that have something to do, if it waits for them."""
    is_behind: bool = False
    """It has begun a collective, and not come to the one that others wait in."""

    def as_json(self) -> dict[str, Any]:
        """For a launcher of another machine."""
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> RankReport:
        """What ``as_json`` made."""
        facts = None if content["facts"] is None else Facts(**content["facts"])
        loaders = [LoaderWorker(worker["pid"], Facts(**worker["facts"]), worker["frames"]) for worker in content["loaders"]]
        return RankReport(**{**content, "facts": facts, "loaders": loaders})

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
        if self.state not in ("running", "late") or self.is_behind:
            return False
        return waits_at(self.frames, self.record["collective"])

    @property
    def still_s(self) -> float:
        """For how long its main thread had not moved when it was looked at last, and since."""
        return float(self.record["time_s"]) - float(self.record["since_s"]) + self.late_s

    @property
    def idle_s(self) -> float:
        """The same, less the time since it has read or written much: a checkpoint, say, at one line for minutes."""
        record = self.record
        if self.facts is not None and self.facts.io_bytes - record.get("io_bytes", math.inf) > BUSY_BYTES * (
            1 + self.late_s
        ):
            return 0.0
        return min(self.still_s, float(record["time_s"]) - float(record.get("worked_s", 0.0)) + self.late_s)

    @property
    def asleep_s(self) -> float:
        """For how long its main thread has not used the processor: one that polls does, at one line for minutes."""
        record = self.record
        return float(record["time_s"]) - float(record.get("awake_s", 0.0)) + self.late_s

    def describe(self) -> str:
        """What it does, in words."""
        doing = self.record["doing"]
        at, of = _where(self.record)
        if self.state == "gone":
            return (
                f"its process is gone, without a word: it was killed {at}, by the launcher after another rank had failed, or "
                "because memory ran out (see dmesg)"
            )
        if self.state == "replaced":
            return f"has put another program in its place {at} (exec), which tells nothing"
        if self.state == "stopped":
            return f"stopped by a signal {at}: `kill -CONT {self.record['pid']}` lets it run on"
        if self.state not in ("running", "late"):
            return f"{self.state} {at}"
        how_long = f"for {self.still_s:.0f} s" if self.still_s >= 2 else "just now"
        how_long += self._silence()
        if self.is_waiting:
            collective = self.record["collective"]
            what = "for the other ranks" if collective is None else f"in {collective['text']}"
            return f"waiting {what}{of}, {how_long}"
        if waits_for_loader(self.frames):
            workers = f"its loader worker{'s' if len(self.loaders) > 1 else ''}"
            return f"waiting for {workers}{''.join(f' {worker.pid}' for worker in self.loaders[:1])}{of}, {how_long}"
        return f"{doing['activity']}{of}, {how_long}"

    def _silence(self) -> str:
        """Why it does not report, or move, as far as the kernel knows."""
        if self.facts is not None and self.facts.swaps:
            return f" (it swaps: {size(self.facts.swap_bytes)} of its memory are on disk)"
        if self.facts is not None and self.facts.state == "D":
            held_in = f", in {self.facts.held_in}" if self.facts.held_in else ""
            return f" (the kernel holds it{held_in}: a file system or a driver that does not answer, or a slow disk)"
        if self.state != "late":
            return ""
        if self.is_here:
            return " (its interpreter does not answer: C code that holds the GIL)"
        return f" (it has not reported for {self.late_s:.0f} s)"

    def stack(self) -> list[str]:
        """The lines to show, outermost first: from the script's own first line on.

        Of a rank that waits only the script's, and then what its loader workers do, if it waits for those.
        """
        lines: list[str] = []
        hides_torch = self.is_waiting or waits_for_loader(self.frames)
        for file, line, name in reversed(self.frames):
            if file.startswith(_LAUNCH):  # what has started the script
                lines = []
                continue
            if hides_torch and (file.startswith(f"{_PACKAGE}/") or any(part in file for part in _BELOW)):
                continue
            lines += _shown(file, line, name)
        for worker in self.loaders[:_MOST_LOADERS]:
            lines.append(f"its loader worker {worker.pid}, {worker.describe()}")
            for frame in reversed(worker.frames):
                lines += [f"  {text}" for text in _shown(*frame)]
        return lines


def brief(lines: Sequence[str]) -> list[str]:
    """A stack for a report: of a deep one where it begins, in the script, and where it ends."""
    if len(lines) <= _OUTERMOST + 1 + _INNERMOST:
        return list(lines)
    return [*lines[:_OUTERMOST], "...", *lines[-_INNERMOST:]]


def _where(record: Mapping[str, Any]) -> tuple[str, str]:
    """In which step that was, in words: to stand alone, and to stand behind something."""
    doing = record["doing"]
    if "num_done" in doing:  # a script that knows no steps
        done = doing["num_done"]
        at = f"after {done} collective{'s' if done > 1 else ''}" if done else "before its first collective"
        if step := doing.get("step", 0):  # its optimizers tell
            at = f"after step {step} ({done} collective{'' if done == 1 else 's'})"
        return at, f", {at}"
    step = doing.get("step", 0)
    at = f"in step {step}" if doing.get("in_step") else (f"after step {step}" if step else "before the first step")
    return at, f" of step {step}" if doing.get("in_step") else f", {at}"


def _shown(file: str, line: int, name: str) -> list[str]:
    source = linecache.getline(file, line).strip()
    return [f"{file}:{line} in {name}", *([f"    {source}"] if source else [])]


LookUp = Callable[[int, float], str]
"""What has become of a process of this machine, from its id and when it last reported: ``running``, ``stopped`` or ``gone``."""
Ask = Callable[[Mapping[str, Any]], Sequence[tuple[str, int, str]] | None]
"""The stack of a process of this machine that has not reported for a while, from its record (``asking.ask``)."""


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """The newest record of each rank of the newest launch of a run, by rank.

    ``run_dir`` may be a launch's private directory as well; ranks that have joined a run have a new box there.
    """
    records = [record for path in (run_dir / DIRECTORY).glob("rank-*.box") if (record := read_box(path)) is not None]
    if any("program" in record for record in records):
        records = [(read_box(Path(record["joined"])) or record) if "joined" in record else record for record in records]
    elif records:
        launch = max(records, key=lambda record: float(record["began_s"]))["launch"]  # of an earlier one more may be left
        records = [record for record in records if record["launch"] == launch]
    return sorted(records, key=lambda record: int(record["rank"]))


def run_joined(private_dir: Path) -> Path | None:
    """The directory of the run that the ranks of a launch have joined; None: not all of them have, or not the same."""
    records = [read_box(path) or {} for path in (private_dir / DIRECTORY).glob("rank-*.box")]
    joined = {str(Path(record["joined"]).parents[1]) if "joined" in record else "" for record in records}
    return Path(min(joined)) if len(joined) == 1 and joined != {""} else None


def read_reports(run_dir: Path, now_s: float, look_up: LookUp, ask: Ask) -> list[RankReport]:
    """What the ranks of the newest launch of a run were doing, by rank. ``now_s``: seconds since 1970."""
    return [_report(record, now_s, look_up, ask) for record in read_records(run_dir)]


def _report(record: Mapping[str, Any], now_s: float, look_up: LookUp, ask: Ask) -> RankReport:
    late_s = max(0.0, now_s - float(record["time_s"]) - EVERY_S)
    state = record["ended"]
    is_here = bool(record["machine"]) and record["machine"] == shared_by("pid")
    if state is not None:
        return RankReport(record, state, late_s, is_here)
    if not is_here:
        return RankReport(record, "late" if late_s > _LATE_S else "running", late_s, is_here)
    pid = int(record["pid"])
    state = look_up(pid, float(record["time_s"]))
    if state == "gone" and record["doing"]["activity"] == ENDING:
        state = "finished"
    if state == "running" and late_s > _LATE_S:
        state = "late"
        if stack := ask(record):
            record = {**record, "stack": stack, "collective": None}
        elif "stack_fd" in record and not catches(pid, SIGNAL):
            state = "replaced"
    report = RankReport(record, state, late_s, is_here)
    if state not in ("running", "late") or report.still_s < _STILL_S or report.is_waiting:
        return report
    loaders = busy_workers(record) if waits_for_loader(report.frames) else ()
    return replace(report, facts=facts_of(pid), loaders=loaders)


def grouped(reports: Sequence[RankReport]) -> list[list[RankReport]]:
    """Ranks that do the same, at the same line, together: those that are missing first, then the smaller groups."""
    groups: dict[Any, list[RankReport]] = {}
    for report in reports:
        collective = report.record["collective"]
        what = collective and collective["text"]
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
