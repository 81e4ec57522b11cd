"""``lockstep runs``: what became of the runs in a directory, and how to go on with one."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from lockstep.cli import inventory, tables
from lockstep.cli.inventory import FAILED, FINISHED, INTERRUPTED, RUNNING, UNREADABLE, Run
from lockstep.cli.tables import Page, fits, printable, say
from lockstep.cli.terminal import open_console
from lockstep.cli.words import NOTHING, size, span
from lockstep.errors import ConfigError

_DEFAULT = Path("runs")
_STYLES = {RUNNING: "green", FINISHED: "", INTERRUPTED: "yellow", FAILED: "red", UNREADABLE: "red"}
_MOST_SIZES = 4
_MOST_OTHERS = 5

_EPILOG = """
\b
Examples:
  lockstep runs
      the runs in ./runs
  lockstep runs /data/runs
      those in another directory
  lockstep runs runs/train-2
      one run
  lockstep runs | grep interrupted
      without a terminal each run is one line
  lockstep runs --json | jq -r '.[] | select(.state == "failed") | .directory'
      for other programs; times are in seconds, those that end in _s and are large since 1970

Looking changes nothing, and needs no right to write; runs that go on are not disturbed.
"""


@click.command("runs", epilog=_EPILOG, context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]})
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, an object a run.")
def command(directory: Path | None, as_json: bool) -> None:
    """List the runs in DIR (./runs if it is not given) and their state: the one that was active last comes last.

    \b
    The state of a run:
      running      a process runs it now, and is named
      finished     its script came to its end
      interrupted  it was stopped or has failed, and can go on from its newest checkpoint
      failed       it was stopped or has failed before its first checkpoint: it can only be started anew
      unreadable   its files were damaged, or written by another version; the reason is below the table

    \b
    The columns:
      step         the last one that is known to have been taken
      saved        the step of its newest checkpoint, with the checkpoint's age and size
      launches     how often it was started, with the number of processes each time (4 → 2: first four, then two)
      best         the best value that team.best() was given
      ran          how long, all launches together
    """
    looked_in = _DEFAULT if directory is None else directory
    if looked_in.is_dir():
        try:
            runs, others = inventory.look_into(looked_in)
        except OSError as error:
            raise ConfigError(f"{looked_in} cannot be read: {error}") from error
    elif directory is None:
        runs, others = [], []
    else:
        what = "it is no directory" if looked_in.exists() else "there is no such directory"
        raise ConfigError(f"no runs in {looked_in.absolute()}: {what}")
    if as_json:
        click.echo(json.dumps([run.as_json() for run in runs], indent=1, allow_nan=False))
        return
    console = open_console()
    if not runs:
        say(console, _nothing(looked_in, others))
        return
    show(runs, console)
    _tell_others(others, console)


def show(runs: Sequence[Run], console: Console) -> None:
    """Print the table, what is wrong with runs, and how to go on."""
    now = time.time()
    whole = _page(runs, _COLUMNS, now)
    if fits(console, whole):
        tables.show(console, whole)
    else:  # cut cells would tell less than two tables
        tables.show(console, _page(runs, _COLUMNS[:_NUM_FIRST], now))
        tables.show(console, _page(runs, _COLUMNS[:1] + _COLUMNS[_NUM_FIRST:], now))
    for run in runs:
        for remark in run.remarks:
            say(console, printable(f"{run.name}: {remark}"), "red")
    interrupted = [run for run in runs if run.state == INTERRUPTED]
    if interrupted:
        say(console, _how_to_go_on(interrupted))


class _Column(NamedTuple):
    heading: str
    cell: Callable[[Run, float], str]
    is_number: bool = True


def _state(run: Run) -> str:
    if run.state == RUNNING:
        return f"running: {run.holder}"
    if run.state == INTERRUPTED and run.checkpoint is not None:
        return f"interrupted in epoch {run.checkpoint.epoch + 1}"
    return "ended before its first checkpoint" if run.state == FAILED else run.state


def _processes(run: Run) -> str:
    """``4 → 2``: the numbers that it had, one after another; the last few of many."""
    sizes = [NOTHING if number is None else str(number) for number, _ in itertools.groupby(run.world_sizes)]
    shown = sizes if len(sizes) <= _MOST_SIZES else ["…", *sizes[-_MOST_SIZES + 1 :]]
    return " → ".join(shown) or NOTHING


def _script(run: Run) -> str:
    if run.script is None:
        return NOTHING
    path = Path(run.script)
    here = Path.cwd()
    return shlex.join([str(path.relative_to(here) if path.is_relative_to(here) else path), *run.args])


_COLUMNS = (
    _Column("run", lambda run, _: run.name, False),
    _Column("state", lambda run, _: _state(run), False),
    _Column("step", lambda run, _: NOTHING if run.step is None else str(run.step)),
    _Column("saved", lambda run, _: NOTHING if run.checkpoint is None else str(run.checkpoint.step)),
    _Column("age", lambda run, now: NOTHING if run.checkpoint is None else span(now - run.checkpoint.time_s)),
    _Column("size", lambda run, _: NOTHING if run.checkpoint is None else size(run.checkpoint.num_bytes)),
    _Column("best", lambda run, _: NOTHING if run.best is None else f"{run.best:.5g}"),
    _Column("ran", lambda run, _: span(run.ran_s)),
    _Column("launches", lambda run, _: str(len(run.world_sizes))),
    _Column("processes", lambda run, _: _processes(run)),
    _Column("shards", lambda run, _: NOTHING if run.shards is None else str(run.shards)),
    _Column("script", lambda run, _: _script(run), False),
)
_NUM_FIRST = 6


def _page(runs: Sequence[Run], columns: Sequence[_Column], now: float) -> Page:
    return Page(
        headings=[column.heading for column in columns],
        rows=[[column.cell(run, now) for column in columns] for run in runs],
        numbers=[column.heading for column in columns if column.is_number],
        styles=[_STYLES[run.state] if columns[1].heading == "state" else "" for run in runs],
    )


def _how_to_go_on(interrupted: Sequence[Run]) -> str:
    last = interrupted[-1].path
    place = last if last.name else last.absolute()
    return (
        "An interrupted run goes on when its command is run again, in the same directory, with any number of processes up "
        "to its shards. Of several runs of one command the newest goes on; another one with --run-dir and its directory: "
        f"lockstep run --run-dir {shlex.quote(str(place))} ..."
    )


def _nothing(looked_in: Path, others: Sequence[Path]) -> str:
    place = looked_in.absolute()
    if not looked_in.is_dir():
        why = "there is no such directory"
    elif others:
        why = f"{_listed(others)} {'is none' if len(others) == 1 else 'are none'}, for want of a birth.json"
    else:
        why = "it is empty"
    inside = looked_in / _DEFAULT
    if inside in others:
        remedy = f"There may be some in {inside}: lockstep runs {shlex.quote(str(inside))}"
    else:
        remedy = "A run makes runs/SCRIPT-N where it is started; lockstep runs DIR looks in another directory."
    return f"no runs in {place}: {why}. {remedy}"


def _tell_others(others: Sequence[Path], console: Console) -> None:
    if others:
        say(console, f"not shown, for want of a birth.json: {_listed(others)}", "dim")


def _listed(paths: Sequence[Path]) -> str:
    names = [shlex.quote(path.name) for path in paths[:_MOST_OTHERS]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
