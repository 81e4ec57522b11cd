"""``lockstep report``: a run, a comparison or a verification as one HTML file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from lockstep.base.atomic import write_atomic
from lockstep.base.config import RUNS
from lockstep.base.errors import CheckpointError, ConfigError
from lockstep.base.regular import open_to_read
from lockstep.cli.echo import echo
from lockstep.cli.options import CONTEXT
from lockstep.journal.events import Event
from lockstep.journal.history import read_events, read_history
from lockstep.state.checkpoint.manifest import Manifest, verify_file
from lockstep.state.checkpoint.store import BEST, DAMAGED, Store
from lockstep.state.rundir.birth import read_birth
from lockstep.tools.compare.comparison import Comparison
from lockstep.tools.compare.results import read_results
from lockstep.tools.explain.rank_reports import RankReport, read_reports
from lockstep.tools.report.comparison_page import comparison_page
from lockstep.tools.report.html import Page, render
from lockstep.tools.report.run_page import RunRecord, SavedState, run_page
from lockstep.tools.report.verification_page import verification_page
from lockstep.tools.runs import inventory
from lockstep.tools.runs.inventory import FINISHED, RUNNING, Run
from lockstep.tools.trials import study
from lockstep.tools.trials.failure import whole_error
from lockstep.tools.verify.verification import Verification
from lockstep.tools.watch.command import find_run
from lockstep.world.machine.sizes import name_ranks

DEFAULT = "report.html"
_MOST_CHECKPOINTS = 100
_LOG_BYTES = 200_000
_MOST_LISTED = 6
_EPILOG = """
\b
Examples:
  lockstep report
      on the run in ./runs that was active last
  lockstep report runs/train-1
      writes runs/train-1/report.html
  lockstep report comparison --output /tmp/for-a-colleague.html
      the results of lockstep compare, in a file elsewhere
  lockstep report verification
      the results of lockstep verify
  lockstep report runs/train-1 && xdg-open runs/train-1/report.html
      open it; from a machine without a screen, copy that one file

The file is self-contained, loads nothing from the network, and stays below a megabyte however long the run was. Reports on
active runs are possible, and do not disturb them.
"""


@click.command("report", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("path", required=False, metavar="[PATH]", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"Write this file, replacing what is there.  [default: PATH/{DEFAULT}]",
)
def command(path: Path | None, output: Path | None) -> None:
    """Write a report on a run, a comparison or a verification: one HTML file.

    PATH is a directory of one of these kinds, or one with runs in it, for the run that was active last (default: ./runs):

    \b
      a run            curves, where the time of a step went on each rank, slow
                       ranks, launches, checkpoints, settings, and any failure
      a comparison     the table of lockstep compare, speed, memory, losses
      a verification   PASS or FAIL, every setting, the first difference

    Every picture has a text alternative, and its numbers as a table.
    """
    is_study = path is not None and (path / study.FILE_NAME).exists()
    path = path if path is not None and is_study else find_run(path or RUNS)
    file = path / DEFAULT if output is None else output
    now_s = time.time()
    text = render(page_of(read_results(path)) if is_study else _page_of_run(path, now_s), now_s)
    try:
        write_atomic(file, text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}. --output FILE writes the report elsewhere") from error
    echo(f"{file}: {len(text.encode()) / 1e3:.0f} kB")


def page_of(results: Comparison | Verification) -> Page:
    """The page of a comparison or a verification."""
    version = metadata.version("torch-lockstep")
    if isinstance(results, Comparison):
        decisive = {result.row.number: result.decisive_run.run_dir for result in results.rows}
        return comparison_page(results, _histories(results.directory, decisive), version)
    ran = {result.setting.number: result.run_dir for result in results.results}
    return verification_page(results, _histories(results.directory, ran), version)


def _page_of_run(path: Path, now_s: float) -> Page:
    damaged = list[int]()
    try:
        run = inventory.read_run(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Run this as a user who may read it") from error
    events = []
    with contextlib.suppress(OSError):  # there is none; or it cannot be read, which is one of the remarks on the run
        events = list(read_events(path, damaged))
    record = RunRecord(
        run=run,
        events=events,
        damaged_lines=damaged,
        saved=tuple(_saved(path)),
        settings=_settings(path),
        last_words=() if run.state in (FINISHED, RUNNING) else tuple(_last_words(run, now_s)),
        version=metadata.version("torch-lockstep"),
        now_s=now_s,
    )
    return run_page(record)


def _settings(path: Path) -> dict[str, Any]:
    try:
        birth = read_birth(path)
    except ConfigError:  # one of the remarks on the run
        return {}
    return {} if birth is None else birth[0].as_json()


def _saved(path: Path) -> Iterator[SavedState]:
    """Its checkpoints and best weights, judged by manifests and file sizes."""
    store = Store(path)
    damaged = sorted(store.directory.glob(f"{DAMAGED}*"), reverse=True)
    for directory in (*store.all(), *([path / BEST] if (path / BEST).is_dir() else []), *damaged)[:_MOST_CHECKPOINTS]:
        name, manifest = directory.name, None
        try:
            manifest = Manifest.read(directory)
            for file in manifest.files:
                verify_file(directory, manifest, file, sizes_only=True)
            damage = "set aside as damaged, by a launch that could not resume from it" if directory in damaged else ""
            yield SavedState(name=name, manifest=manifest, damage=damage)
        except CheckpointError as error:
            if directory.exists():  # an active run may have deleted it meanwhile
                yield SavedState(name=name, manifest=manifest, damage=f"damaged: {error}")


def _last_words(run: Run, now_s: float) -> Iterator[tuple[str, str]]:
    """Errors in the logs in or beside the run directory, and what its ranks did last: captions and texts."""
    beside = run.path.absolute().with_name(f"{run.name}.log")
    for log in [*([beside] if beside.is_file() else []), *sorted(run.path.glob("*/rank-*.log"))[:_MOST_LISTED]]:
        text = _end_of(log)
        if "Error" in text:
            yield str(log), whole_error(text)
    alike: dict[tuple[str, str], list[RankReport]] = {}
    for report in read_reports(run.path, now_s, asks=False):
        # Where a rank that failed was last seen may be half a second before that.
        says = "failed" if report.state == "failed" else report.describe()
        stack = "" if report.state == "failed" else "\n".join(report.stack())
        if report.state != "finished":
            alike.setdefault((says, str(report.record.get("error") or stack)), []).append(report)
    for (says, text), reports in [*alike.items()][:_MOST_LISTED]:
        hosts = ", ".join(sorted({str(report.record["host"]) for report in reports}))
        yield f"{name_ranks([report.rank for report in reports])} on {hosts}: {says}", text


def _end_of(log: Path) -> str:
    """The end of a log. A link is not followed: what a report quotes is passed on."""
    try:
        if log.is_symlink():
            return ""
        with open_to_read(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read(_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _histories(directory: Path, run_dirs: Mapping[int, str | Path | None]) -> dict[int, list[Event]]:
    """The history of each run of a study, by its number; those that have none are left out."""
    histories = {}
    for number, run_dir in run_dirs.items():
        if run_dir is not None:
            with contextlib.suppress(OSError):
                histories[number] = read_history(directory / run_dir)
    return histories
