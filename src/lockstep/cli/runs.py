"""``lockstep runs``: what became of the runs in a directory, how to resume one, and which are old enough to go."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from lockstep.cli import inventory, tables
from lockstep.cli import prune as pruning
from lockstep.cli.inventory import FAILED, FINISHED, INTERRUPTED, RUNNING, UNREADABLE, Run
from lockstep.cli.options import CONTEXT
from lockstep.cli.prune import Results
from lockstep.cli.tables import Page, fits, printable, say
from lockstep.cli.terminal import open_console
from lockstep.cli.words import NOTHING, size, span
from lockstep.errors import ConfigError, LockstepError

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
  lockstep runs --prune
      delete what has been idle for a week, after a list and a question
  lockstep runs --prune --older-than 12h --keep 3 --yes
      without the question, as a cron job would; the newest 3 runs of each script stay

Looking changes nothing, and needs no right to write; running runs are not disturbed.
"""


@click.command("runs", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, an object a run.")
@click.option("--prune", is_flag=True, help="List what is old, ask, and delete it: see above.")
@click.option(
    "--older-than",
    metavar="AGE",
    help="Only what has been idle for so long: 12h, 30d.  [default: everything; with --prune, 7d]",
)
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="With --prune: the newest N of each script stay.  [default: 1]"
)
@click.option("--interrupted", is_flag=True, help="With --prune: also interrupted runs, which could be resumed.")
@click.option("--yes", is_flag=True, help="With --prune: delete without asking.")
def command(
    directory: Path | None,
    as_json: bool,
    prune: bool,
    older_than: str | None,
    keep: int | None,
    interrupted: bool,
    yes: bool,
) -> None:
    """List the runs in DIR (./runs if it is not given) and their state: the one that was active last comes last.

    \b
    The state of a run:
      running      a process runs it now, and is named
      finished     its script came to its end
      interrupted  it was stopped or has failed, and can be resumed from its newest checkpoint
      failed       it was stopped or has failed before its first checkpoint: it can only be started anew
      unreadable   its files were damaged, or written by another version; the reason is below the table

    \b
    The columns:
      step         the last one that is known to have been taken
      saved        the step of its newest checkpoint, with the checkpoint's age and size
      launches     how often it was started, with the number of processes each time (4 → 2: first four, then two)
      best         the best value that team.best() was given
      ran          how long, all launches together

    \b
    --prune deletes finished runs, and those that ended before their first checkpoint. What is running never goes, nor
    what cannot be read, nor a finished run while an older, interrupted one would be resumed in its place. Where no DIR
    is given, the verification and comparison directories beside ./runs are looked at too.
    """
    _check_options(as_json, prune, keep, interrupted, yes)
    least_age_s = None if older_than is None else pruning.read_age(older_than)
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
    if prune:
        if inventory.is_run(looked_in):
            raise ConfigError(
                f"--prune is for a directory of runs, and {looked_in} is one run: rm -r {looked_in} deletes it"
            )
        results = pruning.find_results(Path()) if directory is None else []
        rule = pruning.Rule(
            older_than_s=pruning.read_age("7d") if least_age_s is None else least_age_s,
            keep=1 if keep is None else keep,
            interrupted=interrupted,
        )
        _prune(runs, results, rule, open_console(), ask=not yes)
        for parent in (looked_in, *([Path()] if directory is None else [])):
            pruning.remove_leftovers(parent)
        return
    if least_age_s is not None:
        runs = [run for run in runs if time.time() - run.active_s >= least_age_s]
    if as_json:
        click.echo(json.dumps([run.as_json() for run in runs], indent=1, allow_nan=False))
        return
    console = open_console()
    if runs:
        show(runs, console)
        _tell_others(others, console)
    elif least_age_s is not None:
        say(console, f"no runs in {looked_in.absolute()} that have been idle for {older_than}")
    else:
        say(console, _nothing(looked_in, others))
    if directory is None:
        _tell_results(pruning.find_results(Path()), console)


def _check_options(as_json: bool, prune: bool, keep: int | None, interrupted: bool, yes: bool) -> None:
    if prune and as_json:
        raise ConfigError("--prune and --json: give one of the two")
    given = {"--keep": keep is not None, "--interrupted": interrupted, "--yes": yes}
    alone = [name for name, is_given in given.items() if is_given]
    if alone and not prune:
        raise ConfigError(f"{' and '.join(alone)} without --prune: nothing is deleted without that")


def _prune(runs: Sequence[Run], results: Sequence[Results], rule: pruning.Rule, console: Console, *, ask: bool) -> None:
    now_s = time.time()
    plan = pruning.plan(runs, results, rule, now_s)
    for reason, number in plan.reasons().items():
        say(console, f"{number} stay{'s' if number == 1 else ''}: {reason}", "dim")
    if not plan.going:
        say(console, "nothing to delete")
        return
    sizes = [pruning.num_bytes(one.path) for one in plan.going]
    rows = [
        (printable(str(one.path)), pruning.words(one), span(now_s - one.active_s), size(num_bytes))
        for one, num_bytes in zip(plan.going, sizes, strict=True)
    ]
    tables.show(console, Page(("directory", "state", "idle", "size"), rows, ("idle", "size")))
    total = f"{_directories(len(rows))}, {size(sum(sizes))}"
    if ask and not _may_delete(total):
        say(console, "nothing was deleted")
        return
    freed, failed = 0, []
    for one, num_bytes in zip(plan.going, sizes, strict=True):
        why = pruning.delete(one)
        if why:
            failed.append(f"{one.path} stays: {why}")
        else:
            freed += num_bytes
    say(console, f"deleted {_directories(len(rows) - len(failed))}: {size(freed)} freed")
    if failed:
        raise LockstepError("\n".join(failed))


def _directories(number: int) -> str:
    return f"{number} director{'y' if number == 1 else 'ies'}"


def _may_delete(total: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{total} would be deleted, and there is no terminal to ask at: nothing was deleted. --yes deletes without asking"
        )
    return click.confirm(f"Delete {total}? They cannot be had back.", default=False)


def _tell_results(results: Sequence[Results], console: Console) -> None:
    if results:
        now_s = time.time()
        told = ", ".join(f"{one.path.name} ({pruning.words(one)}, {span(now_s - one.active_s)} old)" for one in results)
        last = results[-1].path.name
        say(console, f"beside it: {printable(told)}. Their runs: lockstep runs {shlex.quote(last)}/runs", "dim")


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
    directory = last if last.name else last.absolute()
    return (
        "An interrupted run resumes when its command is run again, in the same directory, with any number of processes up "
        "to its shards. Of several runs of one command the newest resumes; another one with --run-dir and its directory: "
        f"lockstep run --run-dir {shlex.quote(str(directory))} ..."
    )


def _nothing(looked_in: Path, others: Sequence[Path]) -> str:
    directory = looked_in.absolute()
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
    return f"no runs in {directory}: {why}. {remedy}"


def _tell_others(others: Sequence[Path], console: Console) -> None:
    if others:
        say(console, f"not shown, for want of a birth.json: {_listed(others)}", "dim")


def _listed(paths: Sequence[Path]) -> str:
    names = [shlex.quote(path.name) for path in paths[:_MOST_OTHERS]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
