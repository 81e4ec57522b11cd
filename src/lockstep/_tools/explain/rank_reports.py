"""What the ranks of a run are doing, from their black boxes: which ones wait, and which ones keep
the others waiting."""

from __future__ import annotations

import contextlib
import linecache
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from lockstep._base.regular_files import size_of
from lockstep._base.tracebacks.frames import OURS, Frame, owner
from lockstep._tools.explain.file_locks import FLOCK, FileLock
from lockstep._tools.explain.frames import folded, shortened, users_location
from lockstep._tools.explain.loader_workers import LoaderWorker, waits_for_loader
from lockstep._tools.explain.own_calls import describe_own, own_purpose
from lockstep._tools.explain.process import ProcessFacts
from lockstep._tools.explain.sampler import is_communicating, waits_at
from lockstep._tools.explain.work import BUSY_BYTES, COMPUTES, LEAST_SHARE, READS_OR_WRITES
from lockstep._world.machine.sizes import counted, name_ranks

_LAUNCH = f"{OURS}_launch/"
_WAITING_CODE = (OURS, "/torch/", "/multiprocessing/", "/selectors.py", "/threading.py", "/queue.py")
"""Parts of paths of the code in which a script waits."""
STILL_S = 2.0
"""The seconds without movement after which a rank is examined more closely."""
_RECENT_S = 10.0
"""The seconds after which work that was seen no longer counts as present."""
_MOST_SOURCE_BYTES = 1 << 24
_LEAST_WAKES, _MOST_BETWEEN_S = 3, 5.0
"""The least number of wake-ups of a thread that polls, and the most seconds between two."""
ALIVE = ("running", "late")
"""The states of a process that exists and has not ended its run."""
POLLS = "polls"
"""The cause of a rank that wakes up again and again to look for something."""
DEFAULT_GROUP = "0"
"""PyTorch's name of the process group of all ranks."""


@dataclass(frozen=True)
class RankReport:
    """What one rank was last seen doing."""

    record: Mapping[str, Any]
    """The newest record of the rank's black box."""
    state: str
    """``running``; ``late`` (it has stopped reporting); ``stopped`` by a signal; ``gone``; or how
    it ended: ``finished``, ``failed``. A process that is exiting is in one of the first three, with
    ``ending`` set."""
    late_s: float
    """The seconds since the rank should have reported."""
    is_here: bool = True
    """Whether the rank is a process of this machine."""
    facts: ProcessFacts | None = None
    """What the kernel knows of the process; None unless it is on this machine and does not move."""
    holds_lock: bool = False
    """Whether C code is known to hold the interpreter's lock, in state ``late``."""
    is_now: bool = False
    """Whether the stack is the present one although the state is ``late``."""
    lock: FileLock | None = None
    """The lock of a file that keeps the rank waiting; None: no lock is known."""
    held_by: int | None = None
    """The rank with ``lock``; None: no rank, as far as is known."""
    is_behind: bool = False
    """Whether the rank has begun a collective, but has not reached the one that others wait in."""

    @property
    def rank(self) -> int:
        """The rank of the process."""
        return int(self.record["rank"])

    @property
    def frames(self) -> list[Frame]:
        """The main thread's stack, innermost frame first."""
        return [(str(file), int(line), str(name)) for file, line, name in self.record["stack"]]

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for other ranks."""
        if self.state == "late":  # what it last reported is over
            return self.is_now and is_communicating(self.frames)
        if self.state not in ALIVE or self.is_behind or (self.ending and not is_communicating(self.frames)):
            return False
        return waits_at(self.frames, self.record["collective"])

    @property
    def workers(self) -> list[LoaderWorker]:
        """The workers that it may be waiting for, while it waits for its loader."""
        now_s = float(self.record["time_s"]) + self.late_s
        return [
            LoaderWorker(self.rank, record, max(0.0, now_s - record["time_s"]), max(0.0, now_s - record["since_s"]))
            for record in self.record.get("workers", ())
        ]

    @property
    def ending(self) -> Mapping[str, Any]:
        """The exit of a process whose program has finished: ``how`` it finished, ``since_s``
        (seconds since 1970), and the ``holders`` that block the exit. Empty: the program runs, or
        the process has exited."""
        return self.record.get("ending", {}) if self.state in ALIVE else {}

    @property
    def ending_s(self) -> float:
        """The seconds since the program finished; 0: it runs."""
        return self._since_in(self.ending, "since_s") if self.ending else 0.0

    @property
    def polls(self) -> bool:
        """Whether its main thread, which does not move, wakes up again and again: it looks for
        something that may yet come."""
        least = max(_LEAST_WAKES, self.still_s / _MOST_BETWEEN_S)
        return self.state == "running" and not self.is_waiting and self.record.get("wakes", 0) >= least

    @property
    def call(self) -> str:
        """The collective in which the rank waits, for the user; empty: none is known."""
        collective = self.record["collective"]
        if collective is None or self.state == "late":
            return ""
        name = str(collective.get("group", DEFAULT_GROUP))
        group = "" if name == DEFAULT_GROUP else f" of {name_group(name, collective.get('members') or ())}"
        if purpose := own_purpose(self.frames):
            return f"{describe_own(purpose, str(collective['text']))}{group}"
        via = str(collective.get("via", ""))
        of = f" of {via}" if via.endswith(("_object", "_list")) else ""
        return f"{collective['text']}{of}{group}"

    @property
    def still_s(self) -> float:
        """The seconds since the main thread moved; in state ``late``, since the rank reported."""
        return self._since("time_s" if self.state == "late" else "since_s")

    @property
    def idle_s(self) -> float:
        """The seconds for which the main thread has not moved and nothing else was done (``work``):
        one line may take minutes."""
        return 0.0 if self._work_since else min(self.still_s, self._since("worked_s"))

    @property
    def work(self) -> str:
        """The work that is done while the main thread does not move, for the user; empty: none was
        seen for a while."""
        recent = self.record.get("work", "") if self._since("worked_s") < _RECENT_S else ""
        return self._work_since or str(recent)

    @property
    def _work_since(self) -> str:
        """What a process does that has stopped reporting, as far as the kernel knows."""
        if self.facts is None or self.state != "late":
            return ""
        if self.facts.io_bytes > self.record.get("io_bytes", math.inf) + BUSY_BYTES * (1 + self.late_s):
            return READS_OR_WRITES
        return COMPUTES if self.facts.cpu_s > self.record.get("cpu_s", math.inf) + LEAST_SHARE * self.late_s else ""

    def _since(self, event: str) -> float:
        return self._since_in(self.record, event)

    def _since_in(self, record: Mapping[str, Any], event: str) -> float:
        return float(self.record["time_s"]) - float(record.get(event, 0.0)) + self.late_s

    @property
    def cause(self) -> str:
        """The reason why the rank does not continue, as one word; empty: unknown, or it works."""
        if self.state not in ALIVE:
            return self.state
        if self.facts is not None and self.facts.why_blocked():
            return "disk"
        if self.state == "late":
            return "holds_gil" if self.holds_lock else "silent"
        if self.ending and not self.is_waiting:
            return "ending"
        return self.loader_cause or self._awaits.get("kind", "") or (POLLS if self.polls else "")

    @property
    def loader_cause(self) -> str:
        """Why its loader workers bring no batch, in one word; empty: it does not wait for them, or
        it is not known."""
        return next((cause for worker in self.workers if (cause := worker.cause)), "")

    @property
    def place(self) -> str:
        """Where in the user's code it is, or its loader worker for which it waits; empty: in none,
        or that is not known."""
        if self.state == "late" and not self.is_now:
            return ""
        places = (users_location(worker.frames) for worker in self.workers)
        return next(filter(None, places), "") or users_location(self.frames)

    def describe(self) -> str:
        """What the rank does, for the user."""
        at, of = _step_words(self.record)
        if self.state == "gone":
            return f"dead: {self._why_gone()} {at}"
        if self.state == "stopped":
            return f"stopped by a signal {at}: `kill -CONT {self.record['pid']}` resumes it"
        if self.state not in ALIVE:
            status = f", with status {self.record['status']}" if self.record.get("status", -1) >= 0 else ""
            return f"{self.state}{f' {at}' if at else ''}{status}{self._whether_there()}"
        if self.state == "late":
            return self._describe_silent()
        if self.ending and not self.is_waiting:
            silent = self._why_silent()
            return f"exiting for {self.ending_s:.0f} s; the script has finished{of}{self.handles}{silent}"
        return self._act(f"for {self.still_s:.0f} s" if self.still_s >= 2 else "just now")

    def _act(self, when: str) -> str:
        """What one does whose program runs. ``when``: for how long, or when that was."""
        of = _step_words(self.record)[1]
        activity = str(self.record["doing"]["activity"])
        if self.is_waiting:
            activity = f"waiting {f'in {self.call}' if self.call else 'for the other ranks'}"
        elif waits_for_loader(self.frames) and self.still_s < STILL_S:
            activity = "getting batches from its loader"
        elif waits_for_loader(self.frames):
            activity = "waiting for its loader workers"
        elif saves(self.frames) and not self._is_saving:
            activity = "saving a checkpoint"
        of = "" if self._is_saving else of  # the checkpoint's step has been named
        return f"{activity}{of}, {when}{self.handles}{self._writes}{self._works}{self._why_silent()}"

    @property
    def _writes(self) -> str:
        """The checkpoint that the rank writes in the background, as a clause."""
        step = self.record["doing"].get("checkpoint")
        return "" if step is None or self._is_saving else f", while writing the checkpoint of step {step}"

    @property
    def _is_saving(self) -> bool:
        return bool(self.record["doing"].get("held")) and not self.is_waiting

    @property
    def _works(self) -> str:
        """What is done while its main thread does not move, as far as it is seen, as a clause."""
        is_still = self.still_s >= STILL_S and not self.is_waiting
        work = self.work or ("it wakes up regularly, so it may be working" if self.cause == POLLS else "")
        return f"; {work}" if is_still and work else ""

    def _why_gone(self) -> str:
        status = self.record.get("status")
        if status is None:
            return "killed by its launcher after another rank failed, or by the kernel for lack of memory (see dmesg),"
        try:
            return f"killed by {signal.Signals(-status).name} (signal {-status})"
        except ValueError:
            return f"killed by signal {-status}"

    def _whether_there(self) -> str:
        """Whether the process of a finished run still exists, as a clause."""
        if self.facts is None:
            return ""
        return "; its process still exists: `lockstep stacks` without a directory shows what it does"

    @property
    def handles(self) -> str:
        """Which exception it is handling, as a clause; empty: none, or it moves."""
        handled = self.record.get("handled")
        return f", while handling {handled}" if handled else ""

    def _describe_silent(self) -> str:
        """What is known of one that has stopped reporting, and of when that is."""
        if self.is_now and self.is_waiting:
            return f"waiting for the other ranks, while C code holds the GIL{self.handles}"
        does = self.work or (self.facts.describe_sleep() if self.facts is not None else "")
        does = f" ({does})" if does else ""
        if self.holds_lock:
            called = ", called at this line," if self.is_now else ""
            why = f"its interpreter has not answered for {self.still_s:.0f} s: C code{called} holds the GIL{does}"
        elif blocked := self.facts is not None and self.facts.why_blocked():
            why = f"it has not reported for {self.still_s:.0f} s: {blocked}"
        else:
            why = f"it has not reported for {self.still_s:.0f} s{does}"
        if self.is_now:
            return why
        last = replace(self, state="running", facts=None, record={**self.record, "work": ""}, late_s=0.0)
        said = last.describe() if last.ending else last._act(f"{self.still_s:.0f} s ago")
        return f"{why}. Its present state is unknown; it was last seen {said}"

    def _why_silent(self) -> str:
        """Why it does not move, as far as the kernel knows."""
        why = self.facts.why_blocked() if self.facts is not None else ""
        return f" ({why})" if why else ""

    @property
    def _awaits(self) -> Mapping[str, str]:
        """What the rank waits for, other than ranks: the ``kind``, and the ``words`` for the user.
        Empty: unknown."""
        if self.is_waiting or self.state != "running":
            return {}
        if self.lock is None:
            awaits: Mapping[str, str] = self.record.get("awaits", {})
            return awaits
        holder = f"process {self.lock.holder} (`{self.lock.command}`)"
        if self.held_by is not None:
            holder = f"rank {self.held_by} (pid {self.lock.holder})"
        return {"kind": FLOCK, "words": f"it waits for the lock of {self.lock.file or 'a file'}; {holder} has it"}

    def stack(self, *, short: bool = False, fold: bool = False) -> list[str]:
        """The lines of the stack to show, outermost first, from the script's first line on.

        A rank that waits shows the script's frames only; one that is exiting shows what blocks the
        exit, with its stack.

        Args:
            short: leave out the middle of a deep stack, for a report.
            fold: count the frames of libraries, as ``lockstep stacks`` does.
        """
        if (holders := self.ending.get("holders")) and not self.is_waiting:
            return [line for holder in holders for line in _held_by(holder, short=short, fold=fold)]
        frames = list(
            takewhile(lambda frame: not frame[0].startswith(_LAUNCH), self.frames)
        )  # behind them: what started the script
        if self.is_waiting or waits_for_loader(frames):
            frames = [frame for frame in frames if not any(part in frame[0] for part in _WAITING_CODE)]
        lines = _shown(frames, short=short, fold=fold)
        for worker in self.workers:
            lines += [worker.describe(), *(f"  {line}" for line in _shown(worker.frames, short=short, fold=fold))]
        return [*lines, *([self._awaits["words"]] if self._awaits else []), *self._dead_threads()]

    def _dead_threads(self) -> list[str]:
        """A line for each thread that has died: the main thread may wait for what it no longer
        does."""
        if self.is_waiting:
            return []
        now_s = float(self.record["time_s"]) + self.late_s
        return [
            f"its thread `{dead['thread']}` died {max(0.0, now_s - dead['time_s']):.0f} s ago: {dead['error']}"
            for dead in self.record.get("died", ())
        ]


def _held_by(holder: Mapping[str, Any], *, short: bool, fold: bool) -> list[str]:
    frames = [(str(file), int(line), str(name)) for file, line, name in holder["stack"]]
    users = [number for number, frame in enumerate(frames) if owner(frame[0]) == "user"]
    if users:  # without what has started the thread
        frames = frames[users[0] : users[0] + 1] if short else frames[: users[-1] + 1]
    return [f"{holder['what']}{':' if frames else ''}", *(f"  {line}" for line in _shown(frames, short=short, fold=fold))]


def saves(frames: Sequence[Frame]) -> bool:
    """Whether a thread with this stack saves a checkpoint with PyTorch."""
    return any(
        (file.endswith("/torch/serialization.py") and name == "save") or "/torch/distributed/checkpoint/" in file
        for file, _, name in frames
    )


def _step_words(record: Mapping[str, Any]) -> tuple[str, str]:
    """The step in which a record was made, in two forms: ``in step 5`` and `` of step 5``."""
    doing = record["doing"]
    step = doing.get("step", 0)
    if doing.get("in_step"):
        return f"in step {step}", f" of step {step}"
    at = f"after step {step}" if step else "before the first step"
    if "num_done" in doing:  # a script that does not use lockstep
        collectives = counted(doing["num_done"], "collective") if doing["num_done"] else ""
        at = f"after {collectives}" if collectives else "before its first collective"
        if "ending" in record and not collectives:  # it called none
            at = ""
        if step:
            at = f"after step {step} ({collectives or '0 collectives'})"
    return at, f", {at}" if at else ""


def _shown(frames: Sequence[Frame], *, short: bool, fold: bool) -> list[str]:
    lines = []
    for frame in reversed(shortened(frames) if short else folded(frames) if fold else frames):
        if frame is None or isinstance(frame, str):
            lines.append(frame or "...")
            continue
        file, line, name = frame
        source = _source(file, line)
        lines += [f"{file}:{line} in {name}", *([f"    {source}"] if source else [])]
    return lines


def _source(file: str, line: int) -> str:
    """A line of a program; empty: it cannot be read. A record may name any file, whose lines a
    report would pass on."""
    with contextlib.suppress(OSError, ValueError):
        if file.endswith(".py"):
            size_of(Path(file), _MOST_SOURCE_BYTES)
            return linecache.getline(file, line).strip()
    return ""


def grouped(reports: Sequence[RankReport]) -> list[list[RankReport]]:
    """Reports grouped by state and line of code: ranks that do not wait first, smaller groups
    before larger ones."""
    groups: dict[Any, list[RankReport]] = {}
    for report in reports:
        collective = report.record["collective"]
        what = collective and collective["text"]
        # Ranks of one group share the lines that are shown of its first: whatever a line shows must
        # be part of the key.
        held = tuple(str(holder["stack"]) or holder["what"] for holder in report.ending.get("holders", ()))
        is_there = report.state == "finished" and report.facts is not None
        workers = tuple((worker.cause, tuple(worker.frames), worker.record["error"]) for worker in report.workers)
        died = tuple(dead["error"] for dead in report.record.get("died", ()))
        place = (report.state, is_there, tuple(report.frames), what, report.handles, held, workers, died)
        groups.setdefault(place, []).append(report)
    return sorted(groups.values(), key=lambda group: (group[0].is_waiting, len(group), group[0].rank))


def title(group: Sequence[RankReport], of: str = "") -> str:
    """Which ranks these are, and where they are. ``of``: follows their numbers."""
    hosts = ", ".join(sorted({str(report.record["host"]) for report in group}))
    pid = f" (pid {group[0].record['pid']})" if len(group) == 1 else ""
    return f"{name_ranks([report.rank for report in group])}{of} on {hosts}{pid}"


def name_group(name: str, members: Sequence[int]) -> str:
    """``the default process group``; ``process group 2 (ranks 0 and 1)``. ``members``: empty:
    unknown."""
    if name == DEFAULT_GROUP:
        return "the default process group"
    return f"process group {name}" + (f" ({name_ranks(members)})" if members else "")
