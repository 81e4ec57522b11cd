"""The report on one run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep._events.format import NOT_FINITE, number_in
from lockstep._events.history import history as history_of
from lockstep._tools.compare.figures import pace_of, splits_of
from lockstep._tools.compare.table import count
from lockstep._tools.report import launches, training
from lockstep._tools.report.chart import Table, short
from lockstep._tools.report.html import Page, Section, moment
from lockstep._tools.report.launches import Launch
from lockstep._tools.runs.inventory import FAILED, FINISHED, INTERRUPTED, RUNNING, UNREADABLE, Run
from lockstep._tools.runs.time_split import HEADINGS, lines_on_ranks, rows_of
from lockstep._world.machine.sizes import NOTHING, counted, size, span

_TONES = {RUNNING: "live", FINISHED: "good", INTERRUPTED: "warn", FAILED: "bad", UNREADABLE: "bad"}
_WORDS = {FAILED: "ended before its first checkpoint"}
_MOST_LISTED = 30


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What the report on a run is made from."""

    run: Run
    events: Sequence[dict[str, Any]]
    """All events of the run."""
    damaged_lines: Sequence[int] = ()
    """The numbers of lines of the event log that cannot be read."""
    settings: Mapping[str, Any]
    """The birth of the run."""
    rank_endings: Sequence[tuple[str, str]] = ()
    """How ranks ended, as far as known: captions and texts."""
    version: str
    now_s: float


def run_page(record: RunRecord) -> Page:
    """The page of a run."""
    run, now_s = record.run, record.now_s
    history = history_of(record.events)
    started = launches.launches_of(record.events, is_running=run.state == RUNNING, now_s=now_s)
    begin = started[-1].start if started else {}
    sections = (
        _failures(record, started),
        _curves(history),
        _time(history),
        _launches(started),
        _surroundings(record, begin, history),
    )
    return Page(
        name=run.name,
        state=_WORDS.get(run.state, run.state),
        tone=_TONES[run.state],
        command="" if run.script is None else run.command(run.script),
        summary=_summary(record, history, started),
        tiles=tuple(_tiles(record, history, begin)),
        sections=sections,
        warnings=tuple(_warnings(record)),
        place=str(run.path.absolute()),
        version=record.version,
    )


def _warnings(record: RunRecord) -> Iterator[str]:
    yield from record.run.remarks
    lines = record.damaged_lines
    if lines:
        listed = ", ".join(str(number) for number in lines[:5]) + (", ..." if len(lines) > 5 else "")
        yield (
            f"{counted(len(lines), 'line')} of events.jsonl cannot be read (line {listed}): a launch was killed while "
            "writing, or the file is damaged. These lines are left out here."
        )
    if not record.events:
        yield "There is no event log (events.jsonl), so nothing is known about the training itself."


def _summary(record: RunRecord, history: training.Events, started: Sequence[Launch]) -> str:
    run, limit = record.run, training.bound(history)
    steps = "No step is recorded" if run.step is None else counted(run.step, "step")
    took = "" if run.ran_s is None else f" in {span(run.ran_s)}"
    where = f", over {counted(len(started), 'launch', 'launches')}" if len(started) > 1 else ""
    return f"{steps}{took}{where}. {limit[:1].upper()}{limit[1:]}{'.' if limit else ''}".strip()


def _tiles(record: RunRecord, history: training.Events, begin: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    run = record.run
    epochs = len({event.get("epoch") for event in training.passes_of(history)})
    yield "steps", NOTHING if run.step is None else f"{run.step:,}", f"{counted(epochs, 'epoch')} ended" if epochs else ""
    samples, seconds, is_whole = pace_of(training.passes_of(history))
    yield "samples/s", count(samples / seconds) if seconds else NOTHING, "" if is_whole else "steady, without warm-up"
    shards = "" if run.shards is None else counted(run.shards, "shard")
    sizes = [NOTHING if number is None else str(number) for number in run.world_sizes]
    yield "processes", sizes[-1] if sizes else NOTHING, ", ".join(filter(None, (str(begin.get("strategy") or ""), shards)))
    if (allowed := begin.get("nondeterministic")) and begin.get("device") != "cpu":
        yield "nondeterministic", ", ".join(map(str, allowed)), "these operations were allowed, so results vary"
    yield "duration", span(run.ran_s), f"last active {moment(run.active_s)}"
    evaluated = training.values_of(history, "evaluate")
    for name, pairs in list(evaluated.items() or training.values_of(history, "step").items())[:2]:
        step, last = pairs[-1]
        where = "last evaluation" if evaluated else f"at step {step:,.0f}"
        yield name, NOT_FINITE if last is None else short(last), where
    if run.best is not None:
        yield "best", short(run.best), "kept by team.best()"


def _failures(record: RunRecord, started: Sequence[Launch]) -> Section:
    broken = [launch for launch in started if launch.is_broken]
    failed = [event for event in record.events if event["event"] == "checkpoint_failed"]
    preempted = [event for event in record.events if event["event"] == "preempted"]
    remarks = [f"Launch {launch.number} was {launch.how}, {moment(launch.ended_s)}." for launch in broken]
    remarks += [
        f"After step {event.get('step')}, rank {event.get('rank')} received {event.get('signal')}, and the run stopped "
        f"{'after saving' if event.get('saved') else 'without saving'} a checkpoint."
        for event in preempted
    ]
    remarks += [f"The checkpoint of step {event.get('step')} could not be written: {event.get('error')}" for event in failed]
    left_out = len(remarks) - _MOST_LISTED
    if left_out > 0:
        remarks = [f"{left_out} earlier entries are not listed.", *remarks[-_MOST_LISTED:]]
    remarks += [f"{caption[:1].upper()}{caption[1:]}." for caption, text in record.rank_endings if not text]
    quotes = [(caption, text) for caption, text in record.rank_endings if text]
    return Section(title="What went wrong", remarks=remarks, quotes=quotes)


def _curves(history: training.Events) -> Section:
    pictures, left_out = training.curves(history)
    marks = []
    if any(picture.resumes for picture in pictures):
        marks.append("Dashed lines: the run was resumed.")
    if left_out:
        marks.append(f"Not drawn: {', '.join(left_out[:_MOST_LISTED])}{', ...' if len(left_out) > _MOST_LISTED else ''}.")
    return Section(title="Curves", text=" ".join(marks), pictures=pictures)


def _time(history: training.Events) -> Section:
    splits, num_steps = splits_of(training.passes_of(history))
    table = Table(headings=HEADINGS, rows=rows_of(splits, num_steps), numbers=frozenset(range(1, 5)))
    lines = list(lines_on_ranks(history))[-_MOST_LISTED:]
    return Section(
        title="How the time was spent",
        text=f"Mean of {num_steps:,} steps." if splits else "",
        tables=[table] if splits else [],
        remarks=[f"{line[:1].upper()}{line[1:]}." for line in lines],
    )


def _launches(started: Sequence[Launch]) -> Section:
    rows = [
        (
            str(launch.number),
            moment(launch.began_s),
            span(launch.ended_s - launch.began_s),
            NOTHING if launch.world_size is None else str(launch.world_size),
            NOTHING if launch.resumed_at is None else str(launch.resumed_at),
            NOTHING if launch.last_step is None else str(launch.last_step),
            launch.how,
        )
        for launch in started
    ]
    table = Table(
        headings=("launch", "began", "lasted", "processes", "resumed after step", "last step", "how it ended"),
        rows=rows[-10 * _MOST_LISTED :],
        numbers=frozenset({0, 2, 3, 4, 5}),
    )
    return Section(title="Launches", tables=[table] if rows else [])


def _surroundings(record: RunRecord, begin: Mapping[str, Any], history: training.Events) -> Section:
    shown = dict(record.settings)
    hosts = begin.get("hosts")
    if isinstance(hosts, list):
        names = list(dict.fromkeys(map(str, hosts)))
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        shown["hosts"] = ", ".join(names[:_MOST_LISTED]) + more
    shown |= {
        name: value
        for name, value in begin.items()
        if name not in ("event", "time_s", "hosts", "script") and name not in shown
    }
    facts = [(name.replace("_", " "), _text(value)) for name, value in shown.items() if value is not None]
    newest = [event for event in history if event["event"] == "memory"][-1:]
    facts += [("memory of rank 0's GPU", _memory(event)) for event in newest]
    return Section(
        title="Settings and environment",
        text="The initial settings, the machines and the versions.",
        facts=facts,
    )


def _memory(event: Mapping[str, Any]) -> str:
    names = ("used_before_bytes", "used_after_bytes", "total_bytes", "reserved_after_bytes")
    before, after, total, reserved = (NOTHING if (n := number_in(event, name)) is None else size(n) for name in names)
    return (
        f"{before} used before the first step of the launch, {after} after it, of {total}; "
        f"PyTorch's allocator has reserved {reserved} after it"
    )


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
