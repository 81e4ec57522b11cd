"""``lockstep compare``: compare the speed and results of training methods."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from lockstep._cli.options import CONTEXT_OF_SCRIPTS
from lockstep._cli.tables import say
from lockstep._tools.compare import compare, methods, table
from lockstep._tools.compare.comparison import Comparison
from lockstep._tools.trials.machine import Machine, find_components
from lockstep._tools.trials.studies import conduct, numbers, options_of_studies
from lockstep._tools.trials.study import Task
from lockstep._world.machine.sizes import counted

_EPILOG = """
\b
Examples:
  lockstep compare train.py
      every method that this machine can run
  lockstep compare --methods single,ddp,ddp+bf16-mixed --nproc 2,4 train.py
      three methods, the ddp ones on 2 and on 4 processes: five rows
  lockstep compare --methods ddp,ddp@torchrun -m package.train
      the same method with two launchers, for a module
  lockstep compare --nproc 2 train.py --epochs 3 --data /data/cifar10
      with arguments for the script
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
    callback=numbers(least=1),
    help="Numbers of processes for each method except single and dp, which use one.  "
    "[default: 2, 4, 8, ... up to the number of GPUs; without several GPUs, 2, and 4 if there are 4 cores]",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    metavar="N",
    help="Runs per row, alternating with the other rows, to distinguish differences from noise.  [default: 3]",
)
@options_of_studies(
    run="row",
    out="comparison",
    shards="the script's, otherwise the largest number of processes",
    threads="the cores divided by the largest number of processes",
    timeout="--timeout-per-method: Time limit of each row in seconds. A row that exceeds it is stopped.",
)
def command(
    task: Task, here: Machine, out: Path, method_names: str | None, nproc: tuple[int, ...] | None, rounds: int
) -> None:
    """Run SCRIPT with ARGS with each of several methods, and compare their speed and results.

    The table shows speed (seconds per epoch, samples per second with 95 % interval, speed-up,
    efficiency), resource usage (cores or GPUs, memory) and results (final loss and accuracy, and
    their differences from one process). A sentence per row states whether the row differs by
    more than noise, and what limits it. The directory of --out receives results.json, and the run
    directory and output of every run.

    SCRIPT must call lockstep.join(). Put options before SCRIPT; all arguments after it are passed
    to it. All rows use the same global batch, shards, threads and seed, so that they compute the
    same thing. A method that cannot run here gets a row with the reason.

    \b
    A method is strategy[@launcher][+precision]:
      strategy   single, ddp, exact, fsdp, dp (GPUs only), horovod (if installed)
      launcher   lockstep (the default), torchrun, python (single and dp only),
                 mpirun, horovodrun (if installed)
      precision  32-true (the default), 16-mixed, 16-master, 16-true, bf16-mixed,
                 bf16-true
    """
    components = find_components(num_gpus=here.num_gpus)
    chosen = methods.parse_methods(method_names or ",".join(methods.default_methods(components)))
    nprocs = sorted(nproc or methods.default_nprocs(num_gpus=here.num_gpus, num_cores=here.num_cores))
    planned = compare.plan(task, chosen, nprocs, here, rounds=rounds)
    what = (
        f"comparing {counted(len(planned.rows), 'row')} of {task.script}{f' in {rounds} rounds' if rounds > 1 else ''}: "
        f"V = {'as in the script, otherwise ' if task.shards is None else ''}{counted(planned.shards, 'shard')}, "
        f"{counted(planned.threads, 'thread')} a process"
    )
    done = conduct(planned.begin(out), what, compare.run, _report)
    if not any(result.status == "ok" for result in done.rows):
        raise click.ClickException("no method could run; see the lines above for the reasons")


def _report(comparison: Comparison, console: Console) -> None:
    table.show(comparison, console)
    say(console, f"{comparison.directory}/: results.json, runs/")
