"""``lockstep new``: a script to start from."""

from __future__ import annotations

import os
import shlex
from importlib import resources
from pathlib import Path

import click

from lockstep.cli.options import CONTEXT
from lockstep.errors import UsageError

NAME = "train.py"


@click.command("new", context_settings=CONTEXT)
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Write train.py, a script to start from, into DIR (default: here), and say what to do next.

    It trains a small classifier in seconds, on any number of processes, and needs nothing but PyTorch. Replace its data, model
    and loss with your own. An existing file is never overwritten.
    """
    path = directory / NAME
    text = (resources.files("lockstep.cli") / "template" / NAME).read_text(encoding="utf-8")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path} exists already, so nothing was written. Give another directory: lockstep new my-training"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}. Give a directory that you may write to: lockstep new my-training"
        ) from None
    go = "" if Path.cwd().samefile(directory) else f"cd {shlex.quote(os.fspath(directory))} && "
    click.echo(f"wrote {path}\nnext:")
    click.echo(f"  {go}lockstep run --nproc-per-node 2 {NAME}")
    click.echo(f"  {go}lockstep verify {NAME}")
