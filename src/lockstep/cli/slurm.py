"""``lockstep slurm``: write a Slurm batch file for a script, check it, and submit it."""

from __future__ import annotations

import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from lockstep.cli import run
from lockstep.cli.options import CONTEXT
from lockstep.config import RunConfig
from lockstep.errors import ConfigError, LaunchError
from lockstep.machine.sizes import counted
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
  lockstep slurm train.py -N 4 --ntasks-per-node 8 --shards 32 -- --epochs 30
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

_SETTINGS = {field.name for field in fields(RunConfig)}


class _Command(click.Command):
    """Groups options under headings, and gives a hint where an unknown option may belong to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            message = f"lockstep slurm has no option {name} (options of the script go after --, at the end of the line)."
            raise click.NoSuchOption(name, message, error.possibilities, ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = [(param.name in _SETTINGS, record) for param in options if (record := param.get_help_record(ctx))]
        for title, of_run in (("Job", False), ("Run (as for lockstep run and lockstep.join())", True)):
            with formatter.section(title):
                formatter.write_dl([record for is_setting, record in records if is_setting == of_run])


@click.command(
    "slurm",
    cls=_Command,
    epilog=_EPILOG,
    context_settings=CONTEXT,
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--nodes", "-N", type=int, default=1, metavar="N", help="Number of nodes.  [default: 1]")
@click.option(
    "--ntasks-per-node", type=int, metavar="N", help="Processes per node.  [default: one per GPU; without GPUs, one]"
)
@click.option("--gpus-per-node", metavar="[TYPE:]N", help="GPUs per node.  [default: none]")
@click.option(
    "--cpus-per-task",
    "-c",
    type=int,
    metavar="N",
    help="Cores per process: one, and one per loader worker.  [default: the cluster's]",
)
@click.option("--mem", metavar="SIZE", help="Memory per node, such as 64G; 0 for all of it.  [default: the cluster's]")
@click.option("--time", "-t", metavar="TIME", help="Time limit: 8:00:00, or 2-12 (days-hours).  [default: the partition's]")
@click.option("--partition", "-p", metavar="NAME", help="Partition to submit to.  [default: the cluster's]")
@click.option("--account", "-A", metavar="NAME", help="Account to charge the job to.  [default: the user's]")
@click.option("--qos", "-q", metavar="NAME", help="Quality of service.  [default: the account's]")
@click.option("--nodelist", "-w", metavar="HOSTS", help="Nodes that must be used: n[07-09].")
@click.option("--exclude", "-x", metavar="HOSTS", help="Nodes that must not be used: n[07-09].")
@click.option("--array", "-a", metavar="NUMBERS", help="A job and a run for each number: 0-9, 1,3,5, 0-99%4.")
@click.option("--job-name", "-J", metavar="NAME", help="Name of the job.  [default: the script's name]")
@click.option(
    "--output", "-o", metavar="FILE", help="File for the output.  [default: NAME-%j.out, where %j is the job's number]"
)
@click.option("--requeue/--no-requeue", default=True, help="Requeue the job until its script is done.  [default: --requeue]")
@click.option(
    "--signal",
    metavar="NAME@SECONDS",
    default="USR1@90",
    show_default=True,
    help="Signal to save a checkpoint, and when to send it, in seconds before the time limit.",
)
@click.option(
    "--container", metavar="IMAGE", help="Run in this image, with apptainer (or singularity, if only that is installed)."
)
@click.option("--bind", multiple=True, metavar="DIR", help="Make a directory visible in the container. May be repeated.")
@click.option("--python", metavar="PATH", help="Python interpreter.  [default: this one; in a container, its python3]")
@click.option(
    "--sbatch-option",
    "options",
    multiple=True,
    metavar="OPTION",
    help="Any other option of sbatch: --sbatch-option=--exclusive. May be repeated.",
)
@click.option("--module", "-m", "is_module", is_flag=True, help="Run SCRIPT as a module, as python -m does.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Batch file to write.  [default: NAME.sbatch, after the script]",
)
@click.option("--submit", is_flag=True, help="Submit the batch file.")
def command(
    script: str,
    args: tuple[str, ...],
    file: Path | None,
    submit: bool,
    job_name: str | None,
    python: str | None,
    container: str | None,
    **options: Any,
) -> None:
    """Write a batch file that runs SCRIPT with ARGS on nodes of a Slurm cluster, and check whether the cluster can run it."""
    settings = {name: options.pop(name) for name in list(options) if name in _SETTINGS}
    is_module = options["is_module"]
    if not is_module and not Path(script).is_file():
        raise ConfigError(f"{script}: no such file. Give the path of the script from this directory, as for python")
    name = script.rpartition(".")[2] if is_module else Path(script).stem
    request = Request(
        script=script,
        args=args,
        settings={key: value for key, value in settings.items() if value is not None and value != ()},
        python=python or (sys.executable if container is None else "python3"),
        job_name=job_name or name,
        container=container,
        runtime=next((program for program in RUNTIMES if shutil.which(program)), RUNTIMES[0]),
        **options,
    )
    file = file or Path(f"{name}.sbatch")
    words = [word for word in sys.argv[1:] if word != "--submit"]  # the file is the same with and without --submit
    notices = _check(request, needed=submit)
    backup = files.write(file, batch_text(request, file=str(file), command=["lockstep", *words]))
    processes = counted(request.nodes * request.tasks, "process", "processes")
    click.echo(f"{file}: {processes} on {counted(request.nodes, 'node')}, output in {output_of(request)}")
    if backup is not None:
        notices.insert(0, f"{file} had other content before, which is now in {backup}")
    if container is not None and "://" not in container and not Path(container).exists():
        notices.append(f"{container}: no such file or directory here. It must exist, with that path, on the nodes")
    for notice in notices:
        click.echo(f"lockstep: {notice}", err=True)
    if submit:
        commands.try_out(file)
        _show_job(request, commands.submit(file))
    else:
        click.echo(f"submit it:  sbatch {file}")


command.params += [param for param in run.command.params if param.name in _SETTINGS]


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
    click.echo(f"submitted as job {job}")
    output = output_of(request).replace("%A", job).replace("%j", job)
    click.echo(f"watch it:   squeue --job {job};  tail -F {output.replace('%a', '*')}")
    click.echo(f"stop it:    scancel {job}  (it is saved first)")
