"""``lockstep watch``: show a run's progress, values and ranks live."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import click
from rich.console import Console

from lockstep._base.config import RUNS
from lockstep._base.errors import ConfigError, os_error_text
from lockstep._cli.options import CONTEXT
from lockstep._cli.terminal import open_console
from lockstep._tools.runs import inventory
from lockstep._tools.runs.inventory import RUNNING
from lockstep._tools.watch.frame import frame
from lockstep._tools.watch.watched import Watched

_GONE_S = 5.0
"""The seconds for which a launch that restarts may be absent from the run."""
_HEIGHT = 24
_INTERVAL_S = 1.0
"""The seconds between two frames."""

_EPILOG = """
\b
Examples:
  lockstep watch
      the most recently active run in ./runs, until it ends or Ctrl-C
  lockstep watch runs/train-2
      another run, on any machine that sees its directory
  lockstep watch --once >> notes.txt
      one frame

The command only reads files of the run directory, which every rank updates twice a second. lockstep stacks shows each
rank's line of code.
"""


@click.command("watch", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("directory", required=False, metavar="[RUN]", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print one frame and exit. The default if the output is not a terminal.")
def command(directory: Path | None, once: bool) -> None:
    """Show the run in the directory RUN live: progress with the time left, the latest logged
    values, samples per second, what each rank is doing, and the last checkpoint.

    RUN may also be a directory of runs (default: ./runs), of which the most recently active one is
    shown. The command exits when the run ends, or on Ctrl-C, with status 0."""
    console = open_console()
    watched = Watched(find_run(RUNS if directory is None else directory))
    watched.look(time.time())
    if once or not console.is_terminal:
        console.print(frame(watched, console.width, _HEIGHT), soft_wrap=True)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _follow(watched, console)


def find_run(directory: Path) -> Path:
    """The run directory itself, or the run in it that was active last.

    Raises:
        ConfigError: there is none.
    """
    if inventory.is_run(directory):
        return directory
    try:
        runs = inventory.read_runs(directory)
    except OSError as error:
        raise ConfigError(
            f"no run in {directory.absolute()}: {os_error_text(error)}. Pass a run directory, or a directory of runs.",
            code="no-run",
        ) from error
    if not runs:
        raise ConfigError(
            f"no run in {directory.absolute()}. A run creates runs/SCRIPT-N in its working directory.", code="no-run"
        )
    return runs[-1].path


def _follow(watched: Watched, console: Console) -> None:
    from rich.live import Live

    alive = time.monotonic()
    with Live(console=console, auto_refresh=False, get_renderable=lambda: frame(watched, *console.size)) as live:
        while True:
            live.refresh()
            if watched.state == RUNNING:
                alive = time.monotonic()
            elif watched.has_ended or time.monotonic() - alive > _GONE_S:
                return
            time.sleep(_INTERVAL_S)
            watched.look(time.time())
