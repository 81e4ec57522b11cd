"""``lockstep stacks``: what every rank of a run is doing now, or was doing when it was killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from lockstep._base.errors import ConfigError
from lockstep._cli.echo import echo_json
from lockstep._cli.options import CONTEXT
from lockstep._cli.tables import say
from lockstep._cli.terminal import open_console
from lockstep._launch.private import live_launches
from lockstep._tools.explain.black_box import DIRECTORY
from lockstep._tools.explain.rank_reports import RankReport, grouped, title
from lockstep._tools.explain.reading import read_reports, run_joined
from lockstep._world.machine.sizes import name_ranks

_EPILOG = """
\b
Examples:
  lockstep stacks runs/train-2
      which ranks wait, which are missing, and where in the code
  lockstep stacks
      all ranks on this machine, including unchanged torchrun scripts
  watch lockstep stacks runs/train-2
      repeat every two seconds
  lockstep stacks runs/train-2 --json | jq '.[] | select(.waiting | not)'
      for other programs

The run is not disturbed: twice a second each rank writes what its main thread is doing to RUN_DIR/blackbox. The record
outlives the process, so killed ranks are shown as well.
"""


@click.command("stacks", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("run_dir", metavar="[RUN_DIR]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--pid",
    type=int,
    metavar="PID",
    help="Process id of one lockstep run on this machine.  [default: all]",
)
@click.option("--all", "whole", is_flag=True, help="Show all frames, including library frames.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object per rank, with every frame.")
def command(run_dir: Path | None, pid: int | None, whole: bool, as_json: bool) -> None:
    """Show what each rank is doing, to debug a hang or a slow run. The ranks that the others wait
    for come first.

    Without RUN_DIR, all ranks that lockstep run has started on this machine are shown. Ranks at
    the same line of code form one group. The stack is that of the main thread, outermost call
    first, with the frames of libraries counted."""
    if run_dir is not None and pid is not None:
        raise ConfigError(f"{run_dir} and --pid {pid} exclude each other. Remove one.", code="stacks-run-and-pid")
    launches = _of_launches(pid) if run_dir is None else {"": read_reports(run_dir, time.time())}
    if run_dir is not None and not launches[""]:
        why = "no rank has reported there" if run_dir.is_dir() else "no such directory"
        raise ConfigError(
            f"{run_dir / DIRECTORY}: {why}. `lockstep runs` lists the runs in a directory.", code="stacks-no-run"
        )
    if as_json:
        echo_json([_as_json(report) for reports in launches.values() for report in reports])
        return
    console = open_console()
    for launch, reports in launches.items():
        if launch:
            say(console, launch, "bold")
        _show(reports, console, whole=whole)


def _of_launches(pid: int | None) -> dict[str, list[RankReport]]:
    """The reports of the ranks of this user's launches on this machine, with a title for each
    launch.

    Raises:
        ConfigError: there is no such launch.
    """
    launches = live_launches()
    if pid is not None and pid not in launches:
        known = f"Yours are: {', '.join(map(str, sorted(launches)))}." if launches else "You have none running here."
        raise ConfigError(
            f"--pid {pid} is not a `lockstep run` process of yours on this machine. {known}", code="stacks-unknown-pid"
        )
    by_launch = {}
    for launcher in sorted(launches) if pid is None else [pid]:
        # Each start of the workers has a directory of its own, and the newest is the one that runs.
        starts = sorted(launches[launcher].glob("start-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        where = (run_joined(starts[-1]) or starts[-1]) if starts else launches[launcher]
        if reports := read_reports(where, time.time()):
            what = f", run {where}" if not starts or where != starts[-1] else f", {reports[0].record.get('program')}"
            by_launch[f"lockstep run (process {launcher}){what}"] = reports
    if not by_launch:
        raise ConfigError(
            "no worker of a `lockstep run` of yours has reported on this machine. For a run that is elsewhere or has finished, "
            "pass its directory (`lockstep runs` lists them).",
            code="stacks-nothing-here",
        )
    return by_launch


def _show(reports: Sequence[RankReport], console: Console, *, whole: bool) -> None:
    world_size = reports[0].record["world_size"]
    silent = sorted(set(range(world_size)) - {report.rank for report in reports})
    if silent:
        say(console, f"{name_ranks(silent)} of {world_size}: never reported", "red")
    for group in grouped(reports):
        say(console, f"{title(group, f' of {world_size}')}: {group[0].describe()}", "" if group[0].is_waiting else "bold")
        has_ended = group[0].state in ("finished", "failed")
        for line in () if has_ended else group[0].stack(fold=not whole):
            say(console, f"  {line}", "dim")


def _as_json(report: RankReport) -> dict[str, object]:
    record = report.record
    return {
        "rank": report.rank,
        "host": record["host"],
        "pid": record["pid"],
        "state": report.state,
        "waiting": report.is_waiting,
        "says": report.describe(),
        "still_s": report.still_s,
        **{
            key: record[key]
            for key in ("doing", "ending", "status", "collective", "handled", "stack", "time_s", "begun", "recent")
            if key in record
        },
    }
