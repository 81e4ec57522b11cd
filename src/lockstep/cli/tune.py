"""``lockstep tune``: find the loader settings with which a script waits least for data."""

from __future__ import annotations

import datetime
import platform
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from lockstep.analysis.trial import Record, Trial, passable, run_trial
from lockstep.cli.lists import names
from lockstep.cli.options import command_of_script, given
from lockstep.cli.progress import Progress
from lockstep.cli.tables import Page, say, show
from lockstep.cli.terminal import open_console, sigterm_interrupts
from lockstep.config import RunConfig
from lockstep.errors import ConfigError, LaunchError
from lockstep.launch.local import resolve_nproc
from lockstep.launch.nodes import plan_nodes
from lockstep.launch.options import LaunchOptions
from lockstep.launch.program import find_script
from lockstep.machine.cores import num_cores
from lockstep.machine.sizes import counted
from lockstep.plan.loading import Loading
from lockstep.tuning import verdict
from lockstep.tuning.request import PROPOSALS, TuningRequest, read_result, read_stage
from lockstep.tuning.tuned import Situation, Tuned, read
from lockstep.world import TUNE

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

Settings that speed up steps but alter the answer (threads, channels_last, 16-bit formats, micro-batches, torch.compile)
are then tried, undone, and proposed separately: --tuned never applies them. torch.compile comes last, since it may take
minutes: --propose compile gives it the time.

Exit status: 0 if the loader was measured, 1 if SCRIPT failed before that or cannot be measured, 2 if the arguments are invalid,
130 after Ctrl-C.
"""
_SHOWN = ("nproc_per_node", "is_module", "bind", "threads", "shards", "accumulate", "device", "strategy", "precision")
_WITHIN_S = 28.0
_NOT_PASSED = (
    "run_dir",
    "checkpoint_every",
    "trace",
    "trace_until",
    "profile",
    "progress",
    "tuned",
    "workers",
    "track",
    "audit",
)
"""Settings that the measured run does not take over."""


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
    "--propose",
    "proposed",
    callback=names("proposal", PROPOSALS, none="none"),
    metavar="NAMES",
    help=f"Changes that alter the answer to try, separated by commas: {', '.join(PROPOSALS)}; or none.  "
    f"[default: all that can be tried within {_WITHIN_S:.0f} s of the start]",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Time limit for the whole measurement, in seconds.  [default: 600]",
)
def command(
    script: str,
    args: tuple[str, ...],
    out: Path | None,
    seconds: float,
    limit_s: float,
    proposed: tuple[str, ...] | None,
    **values: Any,
) -> None:
    """Find the loader settings with which SCRIPT waits least for data, and confirm that they help.

    SCRIPT must call lockstep.join() and train on a DataLoader. Options go before it; all arguments after it are passed to it.
    """
    options, settings = LaunchOptions(**given(LaunchOptions, values)), given(RunConfig, values)
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
    nproc = "" if options.nproc_per_node is None else f"--nproc {options.nproc_per_node} "

    def report(result: dict[str, Any]) -> None:
        _report(result, console)
        took = f"in {time.monotonic() - began_s:.0f} s"
        if _save(result, out).loading == Loading():
            say(
                console,
                f"no better settings found ({took}); wrote {out}, with which lockstep run leaves the loader as it is",
            )
        else:
            words = f"lockstep run {nproc}--tuned {out} {shlex.join(program)}"
            say(console, f"to apply it, with bit-identical results ({took}): {words}")

    proposals = PROPOSALS if proposed is None else proposed
    deadline_s = None if proposed else began_s + _WITHIN_S
    result, record = _Measurement(program, num_processes, settings, limit_s, console).run(
        TuningRequest(window_s=seconds, proposals=proposals), report, deadline_s
    )
    _save(result, out)
    for line in verdict.apart(result):
        say(console, line)
    if left := list(result["left"]):
        if record.status == "failed":
            say(console, f"the script failed while {left.pop(0)} was tried: {record.reason}", style="yellow")
        if left and record.exit_status == 0:
            say(
                console,
                f"not tried, since the script finished first: {', '.join(left)}; give it more epochs, or --propose {left[0]}",
            )
        elif left:
            when = f"after {time.monotonic() - began_s:.0f} s"
            say(console, f"not tried, {when}: {', '.join(left)}; to give it the time: --propose {','.join(left)}")


def _save(result: Mapping[str, Any], out: Path) -> Tuned:
    """Write the file of what was measured."""
    tuned = Tuned(
        situation=Situation(**result["situation"]),
        loader=result["loader"],
        loading=verdict.better_loading(result),
        host=platform.node(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        measured={name: result[name] for name in ("present", "now", "costs", "trials", "again", "costliest", "apart")},
    )
    tuned.write(out)
    return tuned


class _Measurement:
    """A throw-away run of the script, whose processes measure it.

    Args:
        program: the script with its arguments.
        num_processes: of the run.
        settings: of the run.
        limit_s: time limit for all of it, in seconds.
        console: for the stages.
    """

    def __init__(
        self, program: Sequence[str], num_processes: int, settings: Mapping[str, Any], limit_s: float, console: Console
    ) -> None:
        self._program = tuple(program)
        self._num_processes = num_processes
        self._settings = settings
        self._limit_s = limit_s
        self._console = console
        self._shown_stage: tuple[str, float | None] | None = None
        self._is_reported = False

    def run(
        self, request: TuningRequest, report: Callable[[dict[str, Any]], None], deadline_s: float | None
    ) -> tuple[dict[str, Any], Record]:
        """What was measured, and how the script ended: it may have failed, or come to its end, while proposals were tried.

        Args:
            request: what to measure.
            report: called with the results once the loader is measured; proposals are tried after that.
            deadline_s: when to end those, in ``time.monotonic()``; None: when they are done.

        Raises:
            LaunchError: the script failed before, or cannot be measured.
            KeyboardInterrupt: Ctrl-C; all of its processes are gone.
        """
        with (
            tempfile.TemporaryDirectory(prefix="lockstep-tune-") as place,
            sigterm_interrupts(),
            Progress(self._console) as progress,
        ):
            directory = Path(place)
            request.write(directory)
            progress.started("starting the script")

            def is_done() -> bool:
                if (stage := read_stage(directory)) != self._shown_stage and stage is not None:
                    self._shown_stage = stage
                    progress.started(*stage)
                result = read_result(directory)
                if result is None or not result.get("is_searched"):
                    return result is not None and result["is_final"]
                if not self._is_reported:
                    self._is_reported = True
                    report(result)
                return result["is_final"] or (deadline_s is not None and time.monotonic() >= deadline_s)

            trial = Trial(
                directory=directory,
                name="run",
                program=self._program,
                launcher="lockstep",
                num_processes=self._num_processes,
                settings=passable(self._settings, but=_NOT_PASSED),
                variables={TUNE: str(directory), "TORCHINDUCTOR_CACHE_DIR": str(directory / "compiled")},
                timeout_s=self._limit_s,
                kill_when=is_done,
            )
            record = run_trial(trial, progress)
            if record.status == "interrupted":
                raise KeyboardInterrupt
            result = _checked(read_result(directory), record, self._limit_s, has_joined=(directory / "run").exists())
            if not self._is_reported:
                report(result)
            return result, record


def _checked(result: dict[str, Any] | None, record: Record, limit_s: float, *, has_joined: bool) -> dict[str, Any]:
    if result is not None and "no_loader" in result:
        raise LaunchError(
            f"nothing to tune: the script trains on a {result['no_loader']} of its own, not on a DataLoader, so workers, "
            "prefetch and pinned memory do not apply. Give team.prepare() a torch.utils.data.DataLoader"
        )
    if result is not None and result.get("is_searched"):  # what came after that is no more than a proposal
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


def _report(result: Mapping[str, Any], console: Console) -> None:
    show(console, Page(("", "", ""), verdict.facts(result)))
    for line in verdict.costliest(result):
        say(console, line)
    say(console, verdict.sentence(result), style="bold")
