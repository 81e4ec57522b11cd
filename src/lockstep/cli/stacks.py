"""``lockstep stacks``: what every rank of a run is doing right now, or was when it was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from lockstep.cli.options import CONTEXT
from lockstep.cli.tables import printable, say
from lockstep.cli.terminal import open_console
from lockstep.errors import ConfigError
from lockstep.explain.asking import ask, look_up
from lockstep.explain.rank_reports import DIRECTORY, RankReport, grouped, name_ranks, read_reports

_EPILOG = """
\b
Examples:
  lockstep stacks runs/train-2
      who waits, who is missing, and where in the code
  watch lockstep stacks runs/train-2
      the same every two seconds
  lockstep stacks runs/train-2 --json | jq '.[] | select(.waiting | not)'
      for other programs

The run is not disturbed: each rank writes twice a second what its main thread does into RUN_DIR/blackbox. The newest record
outlives the process, so a rank that was killed can be asked as well.
"""


@click.command("stacks", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("run_dir", metavar="RUN_DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, an object a rank.")
def command(run_dir: Path, as_json: bool) -> None:
    """Show what every rank of the run in RUN_DIR is doing: the ranks that the others wait for come first.

    Ranks that do the same at the same line of code are shown together. The stack is that of each rank's main thread,
    outermost call first.
    """
    reports = read_reports(run_dir, time.time(), look_up, ask)
    if not reports:
        why = "no rank of it has reported" if run_dir.is_dir() else "there is no such directory"
        raise ConfigError(f"{run_dir / DIRECTORY}: {why}. `lockstep runs` lists the runs of a directory")
    if as_json:
        click.echo(json.dumps([_as_json(report) for report in reports], indent=1))
        return
    _show(reports, open_console())


def _show(reports: Sequence[RankReport], console: Console) -> None:
    world_size = reports[0].record["world_size"]
    silent = sorted(set(range(world_size)) - {report.rank for report in reports})
    if silent:
        say(console, f"{name_ranks(silent)} of {world_size}: has never reported", "red")
    for group in grouped(reports):
        hosts = sorted({str(report.record["host"]) for report in group})
        pids = f" (pid {group[0].record['pid']})" if len(group) == 1 else ""
        title = f"{name_ranks([report.rank for report in group])} of {world_size} on {', '.join(hosts)}{pids}"
        say(console, printable(f"{title}: {group[0].describe()}"), "" if group[0].is_waiting else "bold")
        for line in group[0].stack() if group[0].record["ended"] is None else ():
            say(console, printable(f"  {line}"), "dim")


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
        **{key: record[key] for key in ("doing", "collective", "stack", "time_s")},
    }
