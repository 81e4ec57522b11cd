"""``lockstep slurm``: create, check and submit a Slurm batch file for a script."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from lockstep._base.atomic import write_atomic
from lockstep._base.config import all_settings, setting_kinds
from lockstep._base.errors import ConfigError, LaunchError
from lockstep._cli.config_file import config_option
from lockstep._cli.echo import echo
from lockstep._cli.options import CONTEXT_OF_SCRIPTS, GroupedCommand, given, given_settings, options_from
from lockstep._launch.joins import joining_of
from lockstep._launch.program import find_script
from lockstep._launch.source import Source
from lockstep._tools.slurm import commands
from lockstep._tools.slurm.batch import batch_text, output_of
from lockstep._tools.slurm.request import RUNTIMES, Request
from lockstep._world.machine.sizes import counted

_EPILOG = """
\b
Examples:
  lockstep slurm -N 2 --gpus-per-node 4 -c 12 -t 8:00:00 train.py
      writes train.sbatch: 8 processes, one per GPU, each with 12 cores
  lockstep slurm -N 2 --gpus-per-node 4 -c 12 -t 8:00:00 --submit train.py
      the same, and submits it
  lockstep slurm -N 4 --nproc-per-node 8 train.py --epochs 30
      on the CPUs of four nodes, with arguments for the script
  lockstep slurm --gpus-per-node 4 --container image.sif --bind /data train.py
      in a container in which /data is visible
  lockstep slurm --gpus-per-node 1 --array 0-9 train.py --epochs 3
      ten runs, distinguished by SLURM_ARRAY_TASK_ID

SCRIPT must call lockstep.join().

The job saves a checkpoint before its time limit and when it is preempted. It is then requeued and resumes after the last
step, as often as necessary. With --no-requeue, it ends; submit the same file again to resume. scancel ends the job for
good. It still saves a checkpoint if a step takes less than Slurm's KillWait.

Exit status: 0 on success, 1 if Slurm cannot be reached, 2 if Slurm rejects the job.
"""


@click.command(
    "slurm",
    cls=GroupedCommand,
    headings={"Job": None, "Run (as for lockstep run and lockstep.join())": list(all_settings())},
    epilog=_EPILOG,
    context_settings=CONTEXT_OF_SCRIPTS,
    options_metavar="[OPTIONS]",
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
@config_option
@options_from(*setting_kinds())
def command(script: str, args: tuple[str, ...], file: Path | None, submit: bool, **values: Any) -> None:
    """Create a batch file that runs SCRIPT with ARGS on nodes of a Slurm cluster, and check that
    the cluster can run it.

    Put options before SCRIPT. All arguments after SCRIPT (or after --) are passed to the script."""
    options = given(Request, values)
    is_module, container = options.get("is_module", False), options.get("container")
    if not is_module and not Path(script).is_file():
        raise ConfigError(f"{script}: no such file. Pass the path of the script, as for python.", code="script-missing")
    args = args[1:] if args[:1] == ("--",) else args
    name = script.rpartition(".")[2] if is_module else Path(script).stem
    defaults = {"python": sys.executable if container is None else "python3", "job_name": name}
    request = Request(
        script=script,
        args=args,
        settings=given_settings(values),
        joining=joining_of(_source_of(script, is_module=is_module)),
        runtime=next((program for program in RUNTIMES if shutil.which(program)), RUNTIMES[0]),
        **{**defaults, **options},
    )
    file = file or Path(f"{name}.sbatch")
    # the file is the same with and without --submit
    words = [word for word in sys.argv[1:] if word != "--submit"]
    text, notices = batch_text(request, file=str(file), command=["lockstep", *words]), []
    if commands.is_here():
        try:
            commands.try_out(text)
        except LaunchError as error:
            if submit:
                raise
            notices.append(f"not checked: {error}")
    elif submit:
        raise ConfigError(
            "--submit: sbatch is not installed on this machine. Remove --submit, and submit the file on a machine with "
            "sbatch.",
            code="sbatch-missing",
        )
    else:
        notices.append("not checked: Slurm is not installed on this machine")
    backup = _write(file, text)
    processes = counted(request.nodes * request.tasks, "process", "processes")
    echo(f"{file}: {processes} on {counted(request.nodes, 'node')}, output in {output_of(request)}")
    if backup is not None:
        notices.insert(0, f"moved the previous content of {file} to {backup}")
    if container is not None and "://" not in container and not Path(container).exists():
        notices.append(f"{container}: no such file or directory on this machine. It must exist at this path on the nodes")
    for notice in notices:
        echo(f"lockstep: {notice}", err=True)
    if submit:
        _show_job(request, commands.submit(file))
    else:
        echo(f"submit it:  sbatch {file}")


def _source_of(script: str, *, is_module: bool) -> Source | None:
    """Returns the script's source; None: it is elsewhere, or another Python will run it, whose
    syntax this Python may not know."""
    with contextlib.suppress(ConfigError):
        path = find_script(script, is_module=is_module)
        return None if path is None else Source.read(path, Path.cwd() if is_module else None)
    return None


def _write(file: Path, text: str) -> Path | None:
    """Writes the batch file. Different previous content, which a user may have edited, is kept in
    the file that is returned."""
    backup = None
    try:
        if file.exists() and file.read_text(errors="replace") != text:
            backup = file.replace(file.with_name(f"{file.name}.old"))
        write_atomic(file, text, mode=0o755)
    except OSError as error:
        raise ConfigError(f"cannot write {file} ({error}). Use another file: --file", code="file-not-writable") from error
    return backup


def _show_job(request: Request, job: str) -> None:
    echo(f"submitted as job {job}")
    output = output_of(request).replace("%A", job).replace("%j", job)
    echo(f"watch it:   squeue --job {job};  tail -F {output.replace('%a', '*')}")
    echo(f"stop it:    scancel {job}  (saves a checkpoint first)")
