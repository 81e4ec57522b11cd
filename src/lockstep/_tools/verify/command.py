"""``lockstep verify``: check that a script computes bit-identical results on every number of
processes, and if not, find out why."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from lockstep._base.config import STRATEGIES
from lockstep._cli.options import CONTEXT_OF_SCRIPTS
from lockstep._cli.tables import say
from lockstep._cli.terminal import open_console
from lockstep._launch.program import find_script
from lockstep._tools.check.files import read_script
from lockstep._tools.check.instrument import notices
from lockstep._tools.trials.machine import Machine
from lockstep._tools.trials.studies import conduct, names, numbers, options_of_studies
from lockstep._tools.trials.study import Task
from lockstep._tools.verify import settings, verdict, verify
from lockstep._tools.verify.verification import Verification
from lockstep._world.machine.sizes import counted

_EPILOG = """
\b
Examples:
  lockstep verify train.py --epochs 2
      1, 2, 3 processes; python, torchrun; two kills, resumed; one device
  lockstep verify --nproc 1,2,3,4 --workers 0,2 --launchers local train.py
      each of four numbers of processes, with and without loader workers
  lockstep verify --nproc 2 --workers 0,4 --no-resume --no-one-device train.py
      only the number of loader workers
  lockstep verify --strategy fsdp --nproc 1,2,4 train.py
      with sharded parameters; the digest is of whole tensors
  lockstep verify --shards 8 -m package.train
      a module that does not set shards=, with 8 shards

Every weight is read in every step, so use a short training. A few steps reveal most causes.

Exit status: 0 after PASS, 1 after FAIL, 2 if the arguments or the script are invalid, 130 after Ctrl-C,
143 after SIGTERM.
"""


@click.command(
    "verify",
    epilog=_EPILOG,
    context_settings=CONTEXT_OF_SCRIPTS,
    options_metavar="[OPTIONS]",
)
@click.option(
    "--world-sizes",
    "--nproc",
    "world_sizes",
    metavar="N,N,...",
    callback=numbers(least=1),
    help="Numbers of processes.  [default: 1, 2 and 3, up to twice the cores, and up to the GPUs if there are several]",
)
@click.option(
    "--workers",
    metavar="N,N,...",
    callback=numbers(least=0),
    help="Numbers of loader workers per process.  [default: the script's num_workers]",
)
@click.option(
    "--launchers",
    metavar="NAMES",
    callback=names("launcher", settings.LAUNCHERS),
    help="Launchers: local (lockstep run), torchrun, python (one process).  [default: local, and each of the others once]",
)
@click.option(
    "--strategy",
    type=click.Choice([name for name in STRATEGIES if name != "auto"]),
    help="Strategy of all settings.  [default: the script's, otherwise exact]",
)
@click.option(
    "--resume/--no-resume",
    "resumes",
    default=True,
    help="Kill runs in their first and in their last epoch, and resume each on another number of processes.  "
    "[default: --resume]",
)
@click.option(
    "--one-device/--no-one-device",
    default=True,
    help="Compare the gradient of the first batch with that of a single device on the global batch.  [default: --one-device]",
)
@options_of_studies(
    run="setting",
    out="verification",
    shards="the script's, otherwise a power of two that is at least the largest number of processes",
    threads="the script's, otherwise cores / shards",
    timeout="--timeout-per-run: Time limit of each run in seconds. A setting that exceeds it fails.",
)
def command(
    task: Task,
    here: Machine,
    out: Path,
    world_sizes: tuple[int, ...] | None,
    workers: tuple[int, ...] | None,
    launchers: tuple[str, ...] | None,
    resumes: bool,
    one_device: bool,
) -> None:
    """Run SCRIPT with ARGS in several settings, and verify that the results are bit-identical in
    all of them.

    A setting is a number of processes, a number of loader workers, and a launcher. In the last two
    settings, a run is killed and resumed. Settings are compared step by step: samples (each used
    once, and how many by each process), losses, gradients and their norms, and digests of weights,
    buffers and optimizer state. Weights must have changed. SCRIPT runs in the current environment.

    The output is a line per setting, then PASS with the digest of the weights, or FAIL with the
    first step, shard and parameter that differ. After a FAIL, both settings run again up to that
    step to find the likely cause, which is printed with the line of your code. The command stops at
    the first setting in which the script fails.

    SCRIPT must call lockstep.join(). Put options before SCRIPT; all arguments after it are passed
    to it. The directory of --out receives the output and trace of every run, and results.json."""
    sizes = world_sizes or settings.default_world_sizes(
        num_cores=here.num_cores, num_gpus=here.num_gpus, strategy=task.strategy
    )
    path = find_script(str(task.script), is_module=task.is_module)
    planned = verify.plan(
        task,
        sorted(sizes),
        workers or (None,),
        launchers,
        here,
        resumes=resumes,
        with_one_device=one_device,
        findings=() if path is None else read_script(path),
    )
    console = open_console()
    for line in notices(planned.findings, resumes=resumes):
        say(console, line)
    num_settings = counted(len(planned.results), "setting")
    of_script = "as in the script, otherwise " if task.shards is None else ""
    what = f"verifying {task.script} under {num_settings}: V = {of_script}{counted(planned.shards, 'shard')}"
    if not conduct(planned.begin(out), what, verify.run, _report).passed:
        sys.exit(1)


def _report(verification: Verification, console: Console) -> None:
    for line in verdict.notes(verification):
        say(console, line)
    for number, line in enumerate(verdict.verdict(verification)):
        is_first = line.startswith("FAIL") or (verification.passed and number == 0)
        say(console, line, style=("bold green" if verification.passed else "bold red") if is_first else None)
    say(console, f"{verification.directory}/: results.json, runs/{', diagnosis/' if verification.experiments else ''}")
