"""Shows how the time of a run's steps was spent, for the terminal and the report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lockstep._cli import tables
from lockstep._cli.tables import Page, say
from lockstep._events.format import describe_move, number_in
from lockstep._events.history import read_history
from lockstep._events.measure.split import ACTIVITIES, PARTS, shares_of, verdict

HEADINGS = ("part of a step", "share", "ms", "least", "most")


def show_split(run_dir: Path, console: Console) -> None:
    """Prints how the time of the newest finished pass was spent, and which rank was slow; nothing
    if no pass has finished."""
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
    rows = rows_of(newest["split"], newest["num_steps"])
    tables.show(console, Page(headings=HEADINGS, rows=rows, numbers=HEADINGS[1:]))
    for line in lines_on_ranks(events):
        say(console, line)


def lines_on_ranks(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line about each rank that was slow, and each move of shards."""
    for event in events:
        times, cost = number_in(event, "times"), number_in(event, "cost")
        if event["event"] == "slow" and times is not None and cost is not None:
            what = ACTIVITIES.get(str(event.get("activity")), "its work")
            yield (
                f"rank {event.get('rank')} on {event.get('host')} was slow up to step {event.get('step')}: {what} took it "
                f"{times:.1f} times as long as the other ranks, which waited for it {cost:.0%} of the time"
            )
        elif event["event"] == "move":
            yield describe_move(event)


def rows_of(splits: Sequence[Mapping[str, float]], num_steps: int) -> list[tuple[str, ...]]:
    """Returns a row per part that took any time: its share, the milliseconds per step, and the
    ranks with the smallest and largest value.

    Args:
        splits: the seconds of each rank.
        num_steps: the steps in which they were spent.
    """
    shares = shares_of(splits)
    rows = []
    for part, meaning in PARTS.items():
        ms = [1e3 * split.get(part, 0.0) / num_steps for split in splits]
        if shares[part] < 0.0005:
            continue
        extremes = ["", ""] if len(ms) == 1 else [f"{end(ms):.2f} (rank {ms.index(end(ms))})" for end in (min, max)]
        rows.append((meaning, f"{shares[part]:.1%}", f"{statistics.fmean(ms):.2f}", *extremes))
    return rows
