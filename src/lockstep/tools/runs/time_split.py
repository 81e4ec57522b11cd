"""Where the time of a run's steps went, for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from lockstep.cli import tables
from lockstep.cli.tables import Page, say
from lockstep.journal.events import words_on_move
from lockstep.journal.history import read_history
from lockstep.journal.measure.split import ACTIVITIES, PARTS, shares_of, verdict

_HEADINGS = ("part of a step", "share", "ms", "least", "most")


def show_split(run_dir: Path, console: Console) -> None:
    """Print where the time of the newest pass that has ended went, and which rank was slow; nothing if none has."""
    try:
        events = read_history(run_dir)
    except OSError:  # none yet; or a remark on the run says why
        return
    passes = [
        event
        for event in events
        if event["event"] == "epoch" and event.get("split") and event.get("num_steps") and "epoch" in event
    ]
    if not passes:
        return
    newest = passes[-1]
    say(console, f"epoch {newest['epoch'] + 1}, {newest['num_steps']} steps: {verdict(newest['split'])}")
    rows = _rows(newest)
    tables.show(console, Page(headings=_HEADINGS, rows=rows, numbers=_HEADINGS[1:]))
    for event in events:
        if event["event"] == "slow":
            who, what = f"rank {event['rank']} on {event['host']}", ACTIVITIES.get(event["activity"], event["activity"])
            say(
                console,
                f"{who} was slow up to step {event['step']}: {what} took it {event['times']:.1f} times as long as the others, "
                f"which waited for it for {event['cost']:.0%} of the time",
                "yellow",
            )
        if event["event"] == "move":
            say(console, words_on_move(event))


def _rows(event: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row a part, for those that took any time: its share, the milliseconds of a step, and those of which rank."""
    splits, shares = event["split"], shares_of(event["split"])
    rows = []
    for part, meaning in PARTS.items():
        ms = [1e3 * split.get(part, 0.0) / event["num_steps"] for split in splits]
        if shares[part] < 0.0005:
            continue
        extremes = ["", ""] if len(ms) == 1 else [f"{end(ms):.2f} (rank {ms.index(end(ms))})" for end in (min, max)]
        rows.append((meaning, f"{shares[part]:.1%}", f"{statistics.fmean(ms):.2f}", *extremes))
    return rows
