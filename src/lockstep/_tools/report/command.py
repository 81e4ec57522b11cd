"""``lockstep report``: write an HTML report on a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from lockstep._base.atomic import write_atomic
from lockstep._base.config import RUNS
from lockstep._base.errors import ConfigError
from lockstep._cli.echo import echo
from lockstep._cli.options import CONTEXT
from lockstep._events.history import read_events
from lockstep._state.rundir.fixed_settings import read_fixed_settings
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.reading import read_reports
from lockstep._tools.report.html import Page, render
from lockstep._tools.report.run_page import RunRecord, run_page
from lockstep._tools.runs import inventory
from lockstep._tools.runs.inventory import FINISHED, RUNNING, Run
from lockstep._tools.watch.command import find_run
from lockstep._world.machine.sizes import name_ranks

DEFAULT = "report.html"
_MOST_LISTED = 6
_EPILOG = """
\b
Examples:
  lockstep report
      the most recently active run in ./runs
  lockstep report runs/train-1
      writes runs/train-1/report.html
  lockstep report runs/train-1 --output /tmp/for-a-colleague.html
      writes another file
  lockstep report runs/train-1 && xdg-open runs/train-1/report.html
      opens it; on a machine without a screen, copy that one file

The file is self-contained, loads nothing from the network, and is smaller than a megabyte for a run of any length. A report
on an active run does not disturb it.
"""


@click.command("report", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("path", required=False, metavar="[PATH]", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"File to write; an existing file is replaced.  [default: PATH/{DEFAULT}]",
)
def command(path: Path | None, output: Path | None) -> None:
    """Write an HTML report on a run: curves, how the time of a step is spent, slow ranks, launches,
    settings, and any failure.

    PATH is a run directory, or a directory of runs, of which the most recently active run is used
    (default: ./runs).

    Every picture has a text alternative."""
    path = find_run(path or RUNS)
    file = path / DEFAULT if output is None else output
    now_s = time.time()
    text = render(_page_of(path, now_s), now_s)
    try:
        write_atomic(file, text)
    except OSError as error:
        raise ConfigError(
            f"cannot write {file}: {error}. Use another file: --output FILE", code="file-not-writable"
        ) from error
    echo(f"{file}: {len(text.encode()) / 1e3:.0f} kB")


def _page_of(path: Path, now_s: float) -> Page:
    damaged = list[int]()
    try:
        run = inventory.read_run(path)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error}. Use a user account that can read it.", code="run-unreadable"
        ) from error
    events = []
    # there is none; or it cannot be read, which is one of the remarks on the run
    with contextlib.suppress(OSError):
        events = list(read_events(path, damaged))
    record = RunRecord(
        run=run,
        events=events,
        damaged_lines=damaged,
        settings=_settings(path),
        rank_endings=() if run.state in (FINISHED, RUNNING) else tuple(_rank_endings(run, now_s)),
        version=metadata.version("torch-lockstep"),
        now_s=now_s,
    )
    return run_page(record)


def _settings(path: Path) -> dict[str, Any]:
    try:
        birth = read_fixed_settings(path)
    except ConfigError:  # one of the remarks on the run
        return {}
    return {} if birth is None else birth[0].as_json()


def _rank_endings(run: Run, now_s: float) -> Iterator[tuple[str, str]]:
    """What its ranks did last: captions and texts."""
    alike: dict[tuple[str, str], list[RankReport]] = {}
    for report in read_reports(run.path, now_s):
        # Where a rank that failed was last seen may be half a second before that.
        says = "failed" if report.state == "failed" else report.describe()
        stack = "" if report.state == "failed" else "\n".join(report.stack())
        if report.state != "finished":
            alike.setdefault((says, str(report.record.get("error") or stack)), []).append(report)
    for (says, text), reports in [*alike.items()][:_MOST_LISTED]:
        hosts = ", ".join(sorted({str(report.record["host"]) for report in reports}))
        yield f"{name_ranks([report.rank for report in reports])} on {hosts}: {says}", text
