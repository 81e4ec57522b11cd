"""``lockstep runs``: list runs, their states, and how to resume them."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from lockstep._base.config import RUNS
from lockstep._base.errors import ConfigError
from lockstep._cli import tables
from lockstep._cli.echo import echo_json
from lockstep._cli.options import CONTEXT
from lockstep._cli.tables import Page, fits, say
from lockstep._cli.terminal import open_console
from lockstep._tools.runs import inventory
from lockstep._tools.runs.inventory import FAILED, FINISHED, INTERRUPTED, RUNNING, UNREADABLE, Run
from lockstep._tools.runs.time_split import show_split
from lockstep._world.machine.sizes import NOTHING, size, span

_STYLES = {RUNNING: "green", FINISHED: "", INTERRUPTED: "yellow", FAILED: "red", UNREADABLE: "red"}
_MAX_WORLD_SIZES = 4
_MAX_COMMAND = 200
_MAX_LISTED = 5

_EPILOG = """
\b
Examples:
  lockstep runs
      the runs in ./runs
  lockstep runs /data/runs
      the runs in another directory
  lockstep runs runs/train-2
      one run, and how the time of its steps is spent
  lockstep runs | grep interrupted
      one line per run if the output is not a terminal
  lockstep runs --json | jq -r '.[] | select(.state == "failed") | .directory'
      for other programs; times are in seconds, points in time since 1970
  lockstep runs --json | jq -r '.[]
  | select(.state == "finished" and .active_s < now - 7 * 86400) | .directory'
      runs finished over a week ago: | xargs -rd '\\n' rm -r deletes them

Listing changes nothing, needs no write permission, and does not disturb active runs.
"""


@click.command("runs", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object per run.")
def command(directory: Path | None, as_json: bool) -> None:
    """List the runs in DIR (default: ./runs), their states, and how to resume them. The most
    recently active run comes last.

    \b
    States:
      running      active, in the process shown
      finished     its script has finished
      interrupted  stopped or failed; resumes from its newest checkpoint
      failed       stopped or failed before its first checkpoint
      unreadable   files are damaged or from another version (reason below)

    \b
    Columns:
      step         the last step recorded
      saved        the step of the newest checkpoint, its age and its size
      launches     number of launches, and of processes (4 → 2: first 4, then 2)
      best         the best metric passed to team.best()
      ran          total time of all launches
    """
    runs_dir = RUNS if directory is None else directory
    runs = _read(runs_dir, is_default=directory is None)
    if as_json:
        echo_json([run.as_json() for run in runs])
        return
    console = open_console()
    if runs:
        show(runs, console)
        if inventory.is_run(runs_dir):
            show_split(runs_dir, console)
    else:
        say(console, _explain_no_runs(runs_dir))


def _read(runs_dir: Path, *, is_default: bool) -> list[Run]:
    """The runs in a directory. The default directory may be missing."""
    if runs_dir.is_dir():
        try:
            return inventory.read_runs(runs_dir)
        except OSError as error:
            raise ConfigError(f"cannot read {runs_dir}: {error}", code="runs-unreadable") from error
    if is_default:
        return []
    reason = "not a directory" if runs_dir.exists() else "no such directory"
    raise ConfigError(f"no runs in {runs_dir.absolute()}: {reason}", code="no-such-directory")


def show(runs: Sequence[Run], console: Console) -> None:
    """Print the table, the remarks on runs, and how to resume."""
    now = time.time()
    for columns in _split(runs, console, now):
        tables.show(console, _page(runs, columns, now))
    alike: dict[str, list[str]] = {}
    for run in runs:
        for remark in run.remarks:
            alike.setdefault(remark, []).append(run.name)
    for remark, names in alike.items():
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        say(console, f"{', '.join(names[:_MAX_LISTED])}{more}: {remark}", "red")
    interrupted = [run for run in runs if run.state == INTERRUPTED]
    if interrupted:
        say(console, _how_to_resume(interrupted))


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
    """The world sizes of successive launches, ``4 → 2``; the last few if there are many."""
    sizes = [NOTHING if number is None else str(number) for number, _ in itertools.groupby(run.world_sizes)]
    shown = sizes if len(sizes) <= _MAX_WORLD_SIZES else ["…", *sizes[-_MAX_WORLD_SIZES + 1 :]]
    return " → ".join(shown) or NOTHING


def _script(run: Run) -> str:
    if run.script is None:
        return NOTHING
    path = Path(run.script)
    here = Path.cwd()
    command = run.command(str(path.relative_to(here) if path.is_relative_to(here) else path))
    # A worker of Ray has some 900 characters of arguments, which would hide the other columns.
    return command if len(command) <= _MAX_COMMAND else f"{command[: _MAX_COMMAND - 1]}…"


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


def _split(runs: Sequence[Run], console: Console, now: float) -> list[list[_Column]]:
    """The columns of as few tables as fit the terminal, each with the runs' names: more readable
    than wrapped cells."""
    name, *others = _COLUMNS
    split = [[name]]
    for column in others:
        if len(split[-1]) == 1 or fits(console, _page(runs, [*split[-1], column], now)):
            split[-1].append(column)
        else:
            split.append([name, column])
    return split


def _page(runs: Sequence[Run], columns: Sequence[_Column], now: float) -> Page:
    return Page(
        headings=[column.heading for column in columns],
        rows=[[column.cell(run, now) for column in columns] for run in runs],
        numbers=[column.heading for column in columns if column.is_number],
        styles=[_STYLES[run.state] if columns[1].heading == "state" else "" for run in runs],
    )


def _how_to_resume(interrupted: Sequence[Run]) -> str:
    newest = interrupted[-1].path
    directory = newest if newest.name else newest.absolute()
    return (
        "To resume an interrupted run, repeat its command in the same directory, on any number of processes up to its "
        "shards. The newest run of a command is resumed. To resume another one, pass its directory: lockstep run "
        f"--run-dir {shlex.quote(str(directory))} ..."
    )


def _explain_no_runs(runs_dir: Path) -> str:
    why = "no directory in it contains a birth.json" if runs_dir.is_dir() else "no such directory"
    remedy = "A run creates runs/SCRIPT-N in its working directory. To list another directory: lockstep runs DIR"
    return f"no runs in {runs_dir.absolute()}: {why}. {remedy}"
