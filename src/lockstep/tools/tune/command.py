"""``lockstep tune``: find the loader settings with which a script waits least for data."""

from __future__ import annotations

import datetime
import platform
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from lockstep.base.config import RunConfig
from lockstep.base.errors import ConfigError, LaunchError
from lockstep.cli.options import command_of_script, given, given_settings
from lockstep.cli.progress import Progress
from lockstep.cli.tables import Page, say, show
from lockstep.cli.terminal import open_console, sigterm_interrupts
from lockstep.launch.local import resolve_nproc
from lockstep.launch.nodes import plan_nodes
from lockstep.launch.options import LaunchOptions
from lockstep.launch.program import find_script
from lockstep.plan.loading import Loading
from lockstep.tools.trials.trial import Record, Trial, passable, run_trial
from lockstep.tools.tune import verdict
from lockstep.tools.tune.request import read_result, read_stage
from lockstep.tools.tune.tuned import Situation, Tuned, read
from lockstep.world.machine.cores import num_cores
from lockstep.world.machine.sizes import counted

_EPILOG = """
\b
Examples:
  lockstep tune train.py
      for one process
  lockstep tune --nproc 4 train.py --epochs 9
      for a run of four processes, with the script's own arguments
  lockstep run --tuned train.tuned.json train.py
      use the settings that were found

SCRIPT really trains, in a temporary run directory; files that it writes elsewhere stay. Its steps are timed on batches that are
ready, and its loader without steps, with one worker. These times determine which settings to try: three at most, each beside
the script's own. They are written only if they are clearly faster in every comparison.

The settings (loader workers, prefetch, pinned memory) do not change the answer by a bit. They hold for this script, number of
processes and number of cores: elsewhere lockstep run says so, and leaves the loader as it is.

Nothing that alters the answer (precision, threads, batch size, torch.compile) is tried: lockstep compare measures that.

Exit status: 0 if the loader was measured, 1 if SCRIPT failed before that or cannot be measured, 2 if the arguments are invalid,
130 after Ctrl-C.
"""
_SHOWN = ("nproc_per_node", "is_module", "bind", "threads", "shards", "accumulate", "device", "strategy", "precision")
_NOT_PASSED = ("run_dir", "workers")
"""Settings that the measured run does not take over. (It has its own of others: ``TuningRequest.settings``.)"""


@command_of_script("tune", shown=_SHOWN, epilog=_EPILOG, needs_script=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write the settings to.  [default: SCRIPT.tuned.json, without .py, in the working directory]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.05),
    default=0.5,
    metavar="SECONDS",
    help="Time to measure each setting, in seconds; give more on a noisy machine.  [default: 0.5]",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Time limit for the whole measurement, in seconds.  [default: 600]",
)
def command(script: str, args: tuple[str, ...], out: Path | None, seconds: float, limit_s: float, **values: Any) -> None:
    """Find the loader settings with which SCRIPT waits least for data, and confirm that they help.

    SCRIPT must call lockstep.join() and train on a DataLoader. Options go before it; all arguments after it are passed to it.
    """
    options, settings = LaunchOptions(**given(LaunchOptions, values)), given_settings(values)
    if plan_nodes(options) is not None:
        raise ConfigError(
            "lockstep tune measures on one machine: give it the number of processes of each (--nproc), without options for "
            "several. The run on several needs a file of a run on several, so set --workers there to what was found"
        )
    find_script(script, is_module=options.is_module, is_executable=False)
    out = out or Path(f"{Path(script).stem if not options.is_module else script}.tuned.json")
    if out.exists():
        read(out)  # another kind of file is not replaced
    config = RunConfig.merge(settings, {})
    num_processes = resolve_nproc(options.nproc_per_node, config)
    console, began_s = open_console(), time.monotonic()
    say(
        console,
        f"tuning the loader of {script} on {counted(num_processes, 'process', 'processes')} and {counted(num_cores(), 'core')}",
    )
    program = [*(["-m"] if options.is_module else []), script, *args]
    result = _measure(program, num_processes, settings, seconds, limit_s, console)
    show(console, Page(("", "", ""), verdict.facts(result)))
    for line in verdict.costliest(result):
        say(console, line)
    say(console, verdict.sentence(result), style="bold")
    tuned = Tuned(
        situation=Situation(**result["situation"]),
        loader=result["loader"],
        loading=verdict.better_loading(result),
        host=platform.node(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        measured={name: result[name] for name in ("present", "now", "costs", "trials", "again", "costliest")},
    )
    tuned.write(out)
    took = f"in {time.monotonic() - began_s:.0f} s"
    if tuned.loading == Loading():
        say(console, f"no better settings found ({took}); wrote {out}, with which lockstep run leaves the loader as it is")
        return
    nproc = "" if options.nproc_per_node is None else f"--nproc {options.nproc_per_node} "
    words = f"lockstep run {nproc}--tuned {out} {shlex.join(program)}"
    say(console, f"to apply it, with bit-identical results ({took}): {words}")


def _measure(
    program: Sequence[str],
    num_processes: int,
    settings: Mapping[str, Any],
    window_s: float,
    limit_s: float,
    console: Console,
) -> dict[str, Any]:
    """What the processes of a throw-away run have measured.

    Args:
        program: the script with its arguments.
        num_processes: of the run.
        settings: of the run.
        window_s: minimum time for which steps are timed in one window, in seconds.
        limit_s: time limit for all of it, in seconds.
        console: for the stages.

    Raises:
        LaunchError: the script failed, or cannot be measured.
        KeyboardInterrupt: Ctrl-C; all of its processes are gone.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-tune-") as place, sigterm_interrupts(), Progress(console) as progress:
        directory = Path(place)
        progress.started("starting the script")
        shown_stage: tuple[str, float | None] | None = None

        def is_done() -> bool:
            nonlocal shown_stage
            if (stage := read_stage(directory)) != shown_stage and stage is not None:
                shown_stage = stage
                progress.started(*stage)
            return read_result(directory) is not None

        trial = Trial(
            directory=directory,
            name="run",
            program=tuple(program),
            launcher="lockstep",
            num_processes=num_processes,
            settings=passable(settings, but=_NOT_PASSED),
            asked={"tune": {"directory": place, "window_s": window_s}},
            timeout_s=limit_s,
            kill_when=is_done,
        )
        record = run_trial(trial, progress)
        if record.status == "interrupted":
            raise KeyboardInterrupt
        return _checked(read_result(directory), record, limit_s, has_joined=(directory / "run").exists())


def _checked(result: dict[str, Any] | None, record: Record, limit_s: float, *, has_joined: bool) -> dict[str, Any]:
    if result is not None and "no_loader" in result:
        raise LaunchError(
            f"nothing to tune: the script trains on a {result['no_loader']} of its own, not on a DataLoader, so workers, "
            "prefetch and pinned memory do not apply. Give team.prepare() a torch.utils.data.DataLoader"
        )
    if result is not None:
        return result
    if record.status == "failed":
        raise LaunchError(f"the script failed: {record.reason}\n{record.error}".rstrip())
    if record.status == "timeout":
        raise LaunchError(f"not measured within {limit_s:g} s: steps or batches take long. Give it longer: --limit SECONDS")
    if not has_joined:
        raise LaunchError(
            "the script ended without calling lockstep.join(), so its loader cannot be measured: port it (`lockstep new` "
            "writes one that does)"
        )
    raise LaunchError(
        "the script ended before its loader was measured: it takes too few steps, or leaves its loop early, or prepares no "
        "loader. Let it train for longer (more epochs, or no limit of its steps), or time less: --seconds 0.1"
    )
