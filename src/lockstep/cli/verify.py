"""``lockstep verify``: whether a script gives the same answer at every number of processes, and if not, why."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from lockstep.analysis import machine, settings, verdict, verification
from lockstep.analysis.compare import new_directory
from lockstep.analysis.results import counted
from lockstep.analysis.verification import Plan, SettingResult, Verification
from lockstep.cli.terminal import open_console, sigterm_interrupts
from lockstep.cores import num_cores
from lockstep.launch.cards import num_cards_here

_EPILOG = """
\b
Examples:
  lockstep verify train.py
      1, 2 and 4 processes
  lockstep verify train.py --world-sizes 1,2,3,4 --workers 0,2 --launchers local,torchrun
      sixteen settings: every number of processes, with and without loader workers, under both launchers
  lockstep verify train.py --world-sizes 2 --workers 0,4
      only whether the number of loader workers matters
  lockstep verify train.py --shards 8 -- --epochs 1
      the answer of 8 shards; what follows -- goes to the script

Verify a short training (a few steps are enough to find most causes): every weight is read in every step.
The exit status is 0 after PASS, 1 after FAIL, 2 if the arguments (or the script) cannot be meant, 130 after Ctrl-C.
"""


@click.command(
    "verify",
    epilog=_EPILOG,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--world-sizes",
    "--nproc",
    "world_sizes",
    metavar="N,N,...",
    help="Numbers of processes.  [default: 1, 2 and 4; no more than twice the cores, and than the cards if there are several]",
)
@click.option("--workers", metavar="N,N,...", help="Loader workers of each process.  [default: as the script has them]")
@click.option(
    "--launchers",
    default="local",
    show_default=True,
    metavar="NAMES",
    help="Who starts the processes: local (lockstep run), torchrun.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="V",
    help="Parts that each global batch is cut into, in every setting.  [default: the largest number of processes]",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of every run.  [default: the script's own]")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads of each process, in every setting.  [default: the script's own, else the cores divided by V]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("verification"),
    show_default=True,
    metavar="DIR",
    help="Directory for the results. If there is one already, DIR-2, DIR-3, ...: nothing is overwritten.",
)
@click.option(
    "--timeout-per-run",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop a run that takes longer; its setting has failed.  [default: none]",
)
def command(
    script: Path,
    args: tuple[str, ...],
    world_sizes: str | None,
    workers: str | None,
    launchers: str,
    shards: int | None,
    seed: int | None,
    threads: int | None,
    out: Path,
    timeout_s: float | None,
) -> None:
    """Run SCRIPT under several settings, and show that it computes the same, to the bit, in all of them.

    A setting is a number of processes, a number of loader workers, and a launcher: every combination is run. They are
    compared step by step: the samples used (each once, and how many each process did), losses, gradients and their norms,
    and digests of weights, buffers and optimizer state; and weights must have moved.

    Prints a line a setting, then PASS with the digest of the weights, or FAIL with the first step, shard and parameter that
    differ. After a FAIL it runs the script again, up to that step, in ways that tell causes apart, and names the likely one,
    with the line of your code.

    SCRIPT is one that calls lockstep.join(). DIR holds every run's output and trace, and results.json.
    """
    cores, cards = num_cores(), num_cards_here()
    sizes = (
        settings.default_world_sizes(num_cores=cores, num_cards=cards)
        if world_sizes is None
        else settings.parse_world_sizes(world_sizes)
    )
    plan = Plan(
        command=("lockstep", *sys.argv[1:]),
        script=script,
        args=args,
        settings=settings.expand(sizes, settings.parse_workers(workers), settings.parse_launchers(launchers), shards),
        shards=max(sizes) if shards is None else shards,
        threads=threads,
        num_cores=cores,
        seed=seed,
        timeout_s=timeout_s,
    )
    console = open_console()
    directory = new_directory(out)
    _say(
        console,
        f"verifying {script} under {counted(len(plan.settings), 'setting')}: V = {counted(plan.shards, 'shard')}, "
        f"results in {directory}",
    )
    here = machine.look(num_cores=cores, num_cards=cards)
    with sigterm_interrupts() as stopped_by, _Progress(console, len(plan.settings)) as progress:
        done = verification.verify(plan, directory=directory, machine=here, observer=progress)
    for number, line in enumerate(verdict.verdict(done)):
        _say(console, line, style="bold green" if done.passed else "bold red" if number == 0 else None)
    _say(console, f"{directory}/: results.json, runs/{', diagnosis/' if done.experiments else ''}")
    if done.verdict == "interrupted":
        sys.exit(128 + (signal.SIGTERM if stopped_by else signal.SIGINT))
    if not done.passed:
        sys.exit(1)


def _say(console: Console, line: str, style: str | None = None) -> None:
    console.print(Text(line, style=style or ""), soft_wrap=True)


class _Progress:
    """Says what runs: a line that moves on a terminal, and a line a setting when it has ended."""

    def __init__(self, console: Console, num_settings: int) -> None:
        self._console = console
        self._num_settings = num_settings
        self._what = ""
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, number: int | None, what: str) -> None:
        if number is None and not self._what.startswith("looking"):
            _say(self._console, "they differ; looking for the cause:")
        self._what = f"looking for the cause: {what}" if number is None else f"[{number}/{self._num_settings}] {what}"
        if self._status is not None:
            self._status.update(Text(self._what))
            self._status.start()
        elif number is None:
            _say(self._console, f"  {what} ...")

    def waiting(self, elapsed_s: float) -> None:
        if self._status is not None:
            self._status.update(Text(f"{self._what}: {elapsed_s:.0f} s"))

    def ended(self, verification: Verification, result: SettingResult) -> None:
        _say(self._console, f"{self._what}: {verdict.outcome(verification, result)} ({result.command_s or 0:.1f} s)")
