"""``lockstep tune``: find the number of loader workers with the shortest wait for data."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError, LaunchError
from lockstep._cli.options import command_of_script, given, given_settings
from lockstep._cli.progress import Progress
from lockstep._cli.tables import say
from lockstep._cli.terminal import open_console, sigterm_interrupts
from lockstep._launch.local import resolve_nproc
from lockstep._launch.nodes import plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._launch.program import find_script
from lockstep._tools.trials.trial import Record, Trial, passable, run_trial
from lockstep._tools.tune.search import best_of, is_clear, keeps_up, next_to_try
from lockstep._world.machine.cores import num_cores
from lockstep._world.machine.sizes import counted

_EPILOG = """
\b
Examples:
  lockstep tune train.py
      for one process
  lockstep tune --nproc 4 train.py --epochs 9
      for a run on four processes, with arguments for the script

SCRIPT trains for some seconds with each number of workers, in a temporary run directory. Files that it writes elsewhere are
kept. More workers are tried as long as steps get faster. A number is recommended only if it is clearly faster than the
script's num_workers in every comparison.

The number of loader workers does not change results: they are bit-identical. Settings that change results (precision,
threads, batch size, torch.compile) are not tried; lockstep compare measures those.

Exit status: 0 if the loader was measured, 1 if SCRIPT failed or cannot be measured, 2 if the arguments are invalid, 130
after Ctrl-C.
"""
_SHOWN = ("nproc_per_node", "is_module", "bind", "threads", "shards", "accumulate", "device", "strategy", "precision")
_NOT_PASSED = ("run_dir", "workers")
"""Settings that timed runs do not inherit."""
_OBVIOUS = 2.0
"""The speedup from which on one confirmation is sufficient."""


@command_of_script("tune", shown=_SHOWN, epilog=_EPILOG, needs_script=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.05),
    default=2.0,
    metavar="SECONDS",
    help="Seconds to measure each number of workers; use more on a noisy machine.  [default: 2]",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Time limit for the whole measurement in seconds.  [default: 600]",
)
def command(script: str, args: tuple[str, ...], seconds: float, limit_s: float, **values: Any) -> None:
    """Find the number of loader workers with which SCRIPT waits least for data, and confirm that it
    helps.

    SCRIPT must call lockstep.join() and train on a DataLoader. Put options before SCRIPT; all
    arguments after it are passed to it."""
    options, settings = LaunchOptions(**given(LaunchOptions, values)), given_settings(values)
    if plan_nodes(options) is not None:
        raise ConfigError(
            "lockstep tune measures one machine. Pass the number of processes per machine (--nproc) without options for "
            "several machines, then use its result as --workers of the run.",
            code="several-machines",
        )
    find_script(script, is_module=options.is_module, is_executable=False)
    num_processes = resolve_nproc(options.nproc_per_node, RunConfig.merge(settings, {}))
    console, began_s = open_console(), time.monotonic()
    say(
        console,
        f"tuning the loader of {script} on {counted(num_processes, 'process', 'processes')} and "
        f"{counted(num_cores(), 'core')}",
    )
    program = [*(["-m"] if options.is_module else []), script, *args]
    with sigterm_interrupts(), Progress(console) as progress:
        runs = _Runs(program, num_processes, settings, seconds, began_s + limit_s, progress)
        chosen, verdict = _find(runs, console)
    say(console, verdict, style="bold")
    took = f"in {time.monotonic() - began_s:.0f} s"
    if chosen is None:
        say(console, f"keep the present number of workers ({took})")
        return
    nproc = "" if options.nproc_per_node is None else f"--nproc {options.nproc_per_node} "
    say(
        console,
        f"to apply it, with bit-identical results ({took}): lockstep run {nproc}--workers {chosen} {shlex.join(program)}",
    )


def _find(runs: _Runs, console: Console) -> tuple[int | None, str]:
    """The number of workers that is clearly faster than the script's own, None if there is none;
    and the verdict."""
    now = runs.time(None)
    present = now.workers
    say(
        console,
        f"{_workers(present)} (the script's): {_ms(now.step_s)} per step, of which {_ms(now.wait_s)} wait for the loader",
    )
    if keeps_up(now.step_s, now.wait_s):
        return None, "the loader keeps up: more workers would not make steps faster"
    tried, waits_s = {present: now.step_s}, {present: now.wait_s}
    while (number := next_to_try(tried)) is not None:
        timed = runs.time(number)
        tried[number], waits_s[number] = timed.step_s, timed.wait_s
        say(console, f"{_workers(number)}: {_ms(timed.step_s)} per step, {_times(now.step_s / timed.step_s)}")
    best = best_of(tried)  # perhaps the present number, whose speedup of 1 is not clear
    speedups = [now.step_s / tried[best]]
    while len(speedups) < 3 and is_clear(*speedups):
        speedups.append(runs.time(present, is_again=True).step_s / runs.time(best, is_again=True).step_s)
        if min(speedups) > _OBVIOUS:
            break
    bound = f"data-bound: steps of {_ms(now.step_s)} wait {_ms(now.wait_s)} for the loader"
    if not is_clear(*speedups):
        return None, f"{bound}; no other number is clearly faster. Use cheaper transforms, or more cores"
    rest = "keep up" if keeps_up(tried[best], waits_s[best]) else f"reduce the wait to {_ms(waits_s[best])}"
    return best, f"{bound}; {_workers(best)} {rest}: {_times(min(speedups))}, confirmed"


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """The result of ``timing.Timing`` for one run."""

    step_s: float
    wait_s: float
    workers: int


@dataclass
class _Runs:
    """Runs of the script that are timed and thrown away."""

    program: Sequence[str]
    num_processes: int
    settings: Mapping[str, Any]
    seconds: float
    ends_s: float
    """The time limit, in the time of ``time.monotonic``."""
    progress: Progress
    is_first: bool = field(default=True, init=False)

    def time(self, workers: int | None, *, is_again: bool = False) -> _Timed:
        """Time the steps with this number of workers; None: the script's own.

        Raises:
            LaunchError: the script failed, or cannot be measured.
            KeyboardInterrupt: Ctrl-C; all of its processes have exited.
        """
        what = "the script's workers" if workers is None else _workers(workers)
        self.progress.started(f"again: {what}" if is_again else what)
        with tempfile.TemporaryDirectory(prefix="lockstep-tune-", ignore_cleanup_errors=True) as place:
            directory, result = Path(place), Path(place, "result.json")
            own = {} if workers is None else {"workers": workers}
            trial = Trial(
                directory=directory,
                name="run",
                program=tuple(self.program),
                launcher="lockstep",
                num_processes=self.num_processes,
                settings={**passable(self.settings, but=_NOT_PASSED), **own},
                asked={"tune": {"run_dir": str(directory / "run"), "result": str(result), "seconds": self.seconds}},
                timeout_s=max(1.0, self.ends_s - time.monotonic()),
                kill_when=result.exists,
            )
            record = run_trial(trial, self.progress)
            if record.status == "interrupted":
                raise KeyboardInterrupt
            if not result.exists():
                raise _not_measured(record, has_joined=(directory / "run").exists())
            found = json.loads(result.read_text())
        if "no_loader" in found:
            raise LaunchError(
                f"nothing to tune: the script trains on a {found['no_loader']}, which has no workers. Pass team.prepare() a "
                "torch.utils.data.DataLoader.",
                code="no-loader",
            )
        return _Timed(**found)


def _not_measured(record: Record, *, has_joined: bool) -> LaunchError:
    if record.status == "failed":
        return LaunchError(f"the script failed: {record.reason}\n{record.error}".rstrip(), code="script-failed")
    if record.status == "timeout":
        return LaunchError(
            "not measured within the time limit, because steps or batches take long. Raise the limit: --limit SECONDS",
            code="time-limit",
        )
    if not has_joined:
        return LaunchError(
            "the script finished without calling lockstep.join(), so its loader cannot be measured. Port it (`lockstep new` "
            "creates a script that joins).",
            code="not-joined",
        )
    return LaunchError(
        "the script finished before its loader was measured: it takes too few steps, or prepares no loader. Train for more "
        "steps, or measure for less time: --seconds 0.1",
        code="too-few-steps",
    )


def _workers(number: int) -> str:
    return "no workers" if number == 0 else counted(number, "worker")


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.1f} ms" if milliseconds >= 0.095 else f"{milliseconds:.2f} ms"


def _times(speedup: float) -> str:
    return f"{speedup:.2f} times as fast"
