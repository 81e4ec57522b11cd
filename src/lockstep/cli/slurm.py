"""``lockstep slurm``: a batch file for a script, checked and, if asked for, submitted."""

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
from lockstep.slurm import commands, files, inventory
from lockstep.slurm.batch import batch_text, output_of
from lockstep.slurm.request import RUNTIMES, Request

_EPILOG = """
Examples:
  lockstep slurm train.py --nodes 2 --gpus-per-node 4 --cpus-per-task 12 --time 8:00:00
      writes train.sbatch: 8 processes, one for each GPU, each with 12 cores
  lockstep slurm train.py --nodes 2 --gpus-per-node 4 --cpus-per-task 12 --time 8:00:00 --submit
      writes the same, and submits it
  lockstep slurm train.py --nodes 4 --ntasks-per-node 8 --cpus-per-task 2 --shards 32 --partition cpu -- --epochs 30
      on the CPUs of four nodes; what follows -- goes to the script
  lockstep slurm train.py --gpus-per-node 4 --cpus-per-task 12 --container image.sif --bind /data --nodelist n07
      in a container that also sees /data
  lockstep slurm train.py --gpus-per-node 1 --cpus-per-task 12 --array 0-9 -- --epochs 3
      ten runs; SLURM_ARRAY_TASK_ID tells the script which one it is

SCRIPT is one that calls lockstep.join(). Options may stand before and behind it.

The job saves itself before its time is up, and when it is to make room for another; it is then queued again and
resumes after the last step, as often as it takes (--no-requeue: it ends, and the same file, submitted again, resumes).
scancel ends it for good, and what was trained until then is saved as well, if a step takes less than Slurm's KillWait.

The exit status is 0 if all went well, 1 if Slurm does not answer, 2 if this cluster could never run such a job.
"""

_SETTINGS = {field.name for field in fields(RunConfig)}


class _Command(click.Command):
    """Options under headings, the examples as they are written, and a hint where an option may be the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            words = f"lockstep slurm has no option {name} (the script's own follow a --, last in the line)."
            raise click.NoSuchOption(name, words, error.possibilities, ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        known = [(param.name in _SETTINGS, record) for param in options if (record := param.get_help_record(ctx))]
        for title, of_run in (("The job", False), ("The run, as lockstep run and lockstep.join() have it", True)):
            with formatter.section(title):
                formatter.write_dl([record for is_setting, record in known if is_setting == of_run])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(_EPILOG)


@click.command(
    "slurm",
    cls=_Command,
    context_settings=CONTEXT,
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--nodes", "-N", type=int, default=1, metavar="N", help="How many nodes.  [default: 1]")
@click.option(
    "--ntasks-per-node", type=int, metavar="N", help="Processes on each.  [default: one for each GPU; without GPUs, one]"
)
@click.option("--gpus-per-node", metavar="[KIND:]N", help="GPUs of each node.  [default: none]")
@click.option(
    "--cpus-per-task", "-c", type=int, metavar="N", help="Cores of each process: one, and one for each loader worker."
)
@click.option("--mem", metavar="SIZE", help="Memory of each node: 64G. 0 is all of it.  [default: the cluster's]")
@click.option(
    "--time", "-t", metavar="TIME", help="How long, at most: 8:00:00, 2-12 (days, hours).  [default: the partition's]"
)
@click.option("--partition", "-p", metavar="NAME", help="Partition to submit to.  [default: the cluster's]")
@click.option("--account", "-A", metavar="NAME", help="Account that the job is charged to.")
@click.option("--qos", "-q", metavar="NAME", help="Quality of service.")
@click.option("--nodelist", "-w", metavar="HOSTS", help="Nodes that must be used: n[07-09].")
@click.option("--exclude", "-x", metavar="HOSTS", help="Nodes that must not be used: n[07-09].")
@click.option("--array", "-a", metavar="NUMBERS", help="A job for each number, each a run of its own: 0-9, 1,3,5, 0-99%4.")
@click.option("--job-name", "-J", metavar="NAME", help="What squeue calls it.  [default: the script's name]")
@click.option(
    "--output", "-o", metavar="FILE", help="Where its output goes.  [default: NAME-%j.out, %j is the job's number]"
)
@click.option(
    "--requeue/--no-requeue", default=True, help="Whether it comes again when it was not done.  [default: it does]"
)
@click.option(
    "--signal",
    metavar="NAME@SECONDS",
    default="USR1@90",
    show_default=True,
    help="How long before the end it is to save itself.",
)
@click.option("--container", metavar="IMAGE", help="Run in this image, by apptainer (or singularity, where only that is).")
@click.option(
    "--bind", multiple=True, metavar="DIR", help="A directory that the container shall see, too. May be given again."
)
@click.option("--python", metavar="PATH", help="The interpreter.  [default: this one; in a container, its python3]")
@click.option(
    "--sbatch-option", "options", multiple=True, metavar="OPTION", help="Any other of sbatch's: --sbatch-option=--exclusive."
)
@click.option("--module", "-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The batch file.  [default: SCRIPT's name.sbatch]",
)
@click.option("--submit", is_flag=True, help="Submit it.")
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
    """Write a batch file that runs SCRIPT with ARGS on nodes of a Slurm cluster, and look whether the cluster can run it."""
    given = {name: options.pop(name) for name in list(options) if name in _SETTINGS}
    is_module = options["is_module"]
    if not is_module and not Path(script).is_file():
        raise ConfigError(f"{script}: no such file. Give the path of the script from this directory, as for python")
    name = script.rpartition(".")[2] if is_module else Path(script).stem
    request = Request(
        script=script,
        args=args,
        settings={key: value for key, value in given.items() if value is not None and value != ()},
        python=python or (sys.executable if container is None else "python3"),
        job_name=job_name or name,
        container=container,
        runtime=next((program for program in RUNTIMES if shutil.which(program)), RUNTIMES[0]),
        **options,
    )
    file = file or Path(f"{name}.sbatch")
    words = [word for word in sys.argv[1:] if word != "--submit"]  # with and without it the file is the same
    notices = _look(request, needed=submit)
    kept = files.write(file, batch_text(request, file=str(file), command=["lockstep", *words]))
    processes = _count(request.nodes * request.tasks, "process", "es")
    click.echo(f"{file}: {processes} on {_count(request.nodes, 'node')}, output in {output_of(request)}")
    if kept is not None:
        notices.insert(0, f"{file} was another before: that one is now {kept}")
    if container is not None and "://" not in container and not Path(container).exists():
        notices.append(f"{container}: no such file or directory here. It must exist, under that name, on the nodes")
    for notice in notices:
        click.echo(f"lockstep: {notice}", err=True)
    if submit:
        commands.try_out(file)
        _tell(request, commands.submit(file))
    else:
        click.echo(f"submit it:  sbatch {file}")


command.params += [param for param in run.command.params if param.name in _SETTINGS]


def _look(request: Request, *, needed: bool) -> list[str]:
    """What the user should know of the cluster."""
    if not commands.is_here():
        if needed:
            raise ConfigError("--submit: this machine has no sbatch. Leave it out, and submit the file where there is one")
        return ["not checked: there is no Slurm on this machine"]
    try:
        nodes = commands.look()
    except LaunchError as error:
        if needed:
            told = f"{error}. Nothing was written: leave --submit out, and the file is, without a look at the cluster"
            raise LaunchError(told) from None
        return [f"not checked: {error}"]
    return inventory.check(request, nodes)


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number > 1 else ''}"


def _tell(request: Request, job: str) -> None:
    click.echo(f"submitted as job {job}")
    shown = output_of(request).replace("%A", job).replace("%j", job)
    click.echo(f"watch it:   squeue --job {job};  tail -F {shown.replace('%a', '*')}")
    click.echo(f"stop it:    scancel {job}  (it is saved first)")
