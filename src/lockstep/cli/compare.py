"""``lockstep compare``: run a script with several methods, and report a table, a picture and a file."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from lockstep.analysis import advice, compare, machine, methods, plot, table
from lockstep.analysis.attempts import Asked, counted, new_directory
from lockstep.analysis.results import Comparison
from lockstep.cli.attempts import Progress, options_of_attempts
from lockstep.cli.options import CONTEXT_OF_SCRIPTS
from lockstep.cli.tables import say
from lockstep.cli.terminal import open_console, sigterm_interrupts
from lockstep.launch.gpus import num_gpus_here
from lockstep.launch.program import find_script
from lockstep.machine.cores import num_cores

_EPILOG = """
\b
Examples:
  lockstep compare train.py
      every method that this machine can run
  lockstep compare --methods single,ddp,ddp+bf16-mixed --nproc 2,4 train.py
      three methods, both ddp ones with 2 and 4 processes: five rows
  lockstep compare --methods ddp,ddp@torchrun --timeout-per-method 600 -m package.train
      the same method with two launchers, for a module
  lockstep compare --nproc 2 train.py --epochs 3 --data /data/cifar10
      arguments after the script are passed to it
"""


@click.command(
    "compare",
    epilog=_EPILOG,
    context_settings=CONTEXT_OF_SCRIPTS,
    options_metavar="[OPTIONS]",
)
@click.option(
    "--methods",
    "method_names",
    metavar="NAMES",
    help="Methods to compare, separated by commas: strategy[@launcher][+precision].  "
    "[default: each strategy, launcher and precision once, if this machine can run it]",
)
@click.option(
    "--nproc",
    metavar="N,N,...",
    help="Numbers of processes for each method except single and dp, which have one.  "
    "[default: 2, 4, 8, ... up to the number of GPUs; without several GPUs, 2, and 4 if there are 4 cores]",
)
@options_of_attempts(
    run="row",
    out="comparison",
    shards="the largest number of processes",
    threads="the cores divided by the largest number of processes",
    timeout="--timeout-per-method: Time limit of each row, in seconds; a row that exceeds it is stopped.",
)
def command(asked: Asked, out: Path, method_names: str | None, nproc: str | None) -> None:
    """Run SCRIPT with ARGS with several methods, one after another, and compare them.

    Prints a table of speed (seconds per epoch, samples per second, speed-up, efficiency), resource usage (cores or GPUs,
    memory) and answers (final loss and accuracy, and their differences from those of one process). The directory of
    --out receives the same as results.json and comparison.png, and the directory and output of every run.

    SCRIPT must call lockstep.join(). Options go before it; all arguments after it are passed to it. All rows have the
    same global batch, shards, threads and seed, so that they compute the same thing; a method that cannot run here gets
    a row with the reason.

    \b
    A method is strategy[@launcher][+precision]:
      strategy   single, ddp, exact, fsdp, dp (GPUs only), horovod (if installed)
      launcher   lockstep (the default), torchrun, python (single and dp only),
                 mpirun, horovodrun (if installed)
      precision  32-true (the default), 16-mixed, 16-master, 16-true, bf16-mixed,
                 bf16-true
    """
    find_script(str(asked.script), is_module=asked.is_module)
    cores, gpus = num_cores(), num_gpus_here()
    found = machine.find_components(num_gpus=gpus)
    chosen = methods.parse_methods(method_names or ",".join(methods.default_methods(found)))
    nprocs = methods.default_nprocs(num_gpus=gpus, num_cores=cores) if nproc is None else methods.parse_nprocs(nproc)
    plan = compare.plan(asked, chosen, nprocs, cores)
    console = open_console()
    directory = new_directory(out)
    say(
        console,
        f"comparing {counted(len(plan.rows), 'run')} of {asked.script}: V = {counted(plan.shards, 'shard')}, "
        f"{counted(plan.threads, 'thread')} a process, results in {directory}",
    )
    here = machine.look(num_cores=cores, num_gpus=gpus)
    with sigterm_interrupts() as stopped_by, Progress(console) as progress:
        comparison = compare.run(plan, directory=directory, machine=here, observer=progress)
    _report(comparison, console)
    statuses = {result.status for result in comparison.rows}
    if "interrupted" in statuses:
        sys.exit(128 + (signal.SIGTERM if stopped_by else signal.SIGINT))
    if "ok" not in statuses:
        raise click.ClickException("no method could be run: the lines above say why")


def _report(comparison: Comparison, console: Console) -> None:
    table.show(comparison, advice.notes_on(comparison), console)
    picture = f" and {plot.FILE_NAME}"
    try:
        plot.draw(comparison)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        picture = ""
        say(console, 'no picture, which requires matplotlib: pip install "torch-lockstep[compare]"', style="yellow")
    say(console, f"{comparison.directory}/: results.json{picture}, runs/")
