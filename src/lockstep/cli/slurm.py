"""``lockstep slurm``: write a Slurm batch file for a script, check it, and submit it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from lockstep.cli.echo import echo
from lockstep.cli.options import CONTEXT, GroupedCommand, given, options_from
from lockstep.config import RunConfig
from lockstep.errors import ConfigError, LaunchError
from lockstep.machine.sizes import counted
from lockstep.option import options_of
from lockstep.slurm import commands, files, inventory
from lockstep.slurm.batch import batch_text, output_of
from lockstep.slurm.request import RUNTIMES, Request

_EPILOG = """
\b
Examples:
  lockstep slurm train.py -N 2 --gpus-per-node 4 -c 12 -t 8:00:00
      writes train.sbatch: 8 processes, one per GPU, each with 12 cores
  lockstep slurm train.py -N 2 --gpus-per-node 4 -c 12 -t 8:00:00 --submit
      writes the same, and submits it
  lockstep slurm train.py -N 4 --ntasks-per-node 8 -- --epochs 30
      on the CPUs of four nodes; arguments after -- are passed to the script
  lockstep slurm train.py --gpus-per-node 4 --container image.sif --bind /data
      in a container in which /data is visible
  lockstep slurm train.py --gpus-per-node 1 --array 0-9 -- --epochs 3
      ten runs, distinguished by SLURM_ARRAY_TASK_ID

SCRIPT must call lockstep.join(). Options may precede and follow it.

The job saves a checkpoint before its time limit and when it is preempted; it is then requeued and resumes after the last
step, as often as necessary (with --no-requeue it ends; submitting the same file again resumes it). scancel ends it for
good; it saves a checkpoint then too, if a step takes less than Slurm's KillWait.

Exit status: 0 on success, 1 if Slurm does not answer, 2 if the cluster can never run such a job.
"""


class _Command(GroupedCommand):
    """Gives a hint where an unknown option may belong to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            message = f"lockstep slurm has no option {name} (options of the script go after --, at the end of the line)."
            raise click.NoSuchOption(name, message, error.possibilities, ctx) from None


@click.command(
    "slurm",
    cls=_Command,
    headings={"Job": None, "Run (as for lockstep run and lockstep.join())": list(options_of(RunConfig))},
    epilog=_EPILOG,
    context_settings=CONTEXT,
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@options_from(Request)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Batch file to write.  [default: NAME.sbatch, after the script]",
)
@click.option("--submit", is_flag=True, help="Submit the batch file.")
@options_from(RunConfig)
def command(script: str, args: tuple[str, ...], file: Path | None, submit: bool, **values: Any) -> None:
    """Write a batch file that runs SCRIPT with ARGS on nodes of a Slurm cluster, and check whether the cluster can run it."""
    options = given(Request, values)
    is_module, container = options.get("is_module", False), options.get("container")
    if not is_module and not Path(script).is_file():
        raise ConfigError(f"{script}: no such file. Give the path of the script from this directory, as for python")
    name = script.rpartition(".")[2] if is_module else Path(script).stem
    defaults = {"python": sys.executable if container is None else "python3", "job_name": name}
    request = Request(
        script=script,
        args=args,
        settings=given(RunConfig, values),
        runtime=next((program for program in RUNTIMES if shutil.which(program)), RUNTIMES[0]),
        **{**defaults, **options},
    )
    file = file or Path(f"{name}.sbatch")
    words = [word for word in sys.argv[1:] if word != "--submit"]  # the file is the same with and without --submit
    notices = _check(request, needed=submit)
    backup = files.write(file, batch_text(request, file=str(file), command=["lockstep", *words]))
    processes = counted(request.nodes * request.tasks, "process", "processes")
    echo(f"{file}: {processes} on {counted(request.nodes, 'node')}, output in {output_of(request)}")
    if backup is not None:
        notices.insert(0, f"{file} had other content before, which is now in {backup}")
    if container is not None and "://" not in container and not Path(container).exists():
        notices.append(f"{container}: no such file or directory here. It must exist, with that path, on the nodes")
    for notice in notices:
        echo(f"lockstep: {notice}", err=True)
    if submit:
        commands.try_out(file)
        _show_job(request, commands.submit(file))
    else:
        echo(f"submit it:  sbatch {file}")


def _check(request: Request, *, needed: bool) -> list[str]:
    """Notices for the user about the job on this cluster. ``needed``: it is an error if Slurm does not answer."""
    if not commands.is_here():
        if needed:
            raise ConfigError(
                "--submit: this machine has no sbatch. Leave it out, and submit the file on a machine with sbatch"
            )
        return ["not checked: there is no Slurm on this machine"]
    try:
        nodes = commands.look()
    except LaunchError as error:
        if needed:
            raise LaunchError(f"{error}. Nothing was written: without --submit the file is written unchecked") from None
        return [f"not checked: {error}"]
    return inventory.check(request, nodes)


def _show_job(request: Request, job: str) -> None:
    echo(f"submitted as job {job}")
    output = output_of(request).replace("%A", job).replace("%j", job)
    echo(f"watch it:   squeue --job {job};  tail -F {output.replace('%a', '*')}")
    echo(f"stop it:    scancel {job}  (it is saved first)")
