"""``lockstep new``: a script to start from."""

from __future__ import annotations

import itertools
import os
import shlex
from importlib import resources
from pathlib import Path

import click

from lockstep._base.errors import UsageError
from lockstep._cli.echo import echo
from lockstep._cli.options import CONTEXT

NAME = "train.py"


@click.command("new", context_settings=CONTEXT)
@click.argument("place", metavar="[DIR|FILE.py]", default=".", type=click.Path(path_type=Path))
def command(place: Path) -> None:
    """Create a training script to start from: DIR/train.py (default: in this directory), or
    FILE.py.

    The script trains a small model in seconds, on any number of processes, and needs only PyTorch.
    It keeps the weights that are best on a validation set, and stops early. Replace its data, model
    and loss with your own. An existing file is never overwritten."""
    path = place if place.suffix == ".py" else place / NAME
    directory = path.parent
    text = (resources.files("lockstep._cli") / "template" / "mlp.py").read_text(encoding="utf-8")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            raise UsageError(
                f"{path} already exists, so nothing was written. Use another name: lockstep new {_free_name(path)}",
                code="file-exists",
            )
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace(NAME, path.name))
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.filename or path}: {error.strerror}. Use another directory: lockstep new DIR",
            code="file-not-writable",
        ) from None
    go = "" if Path.cwd().samefile(directory) else f"cd {shlex.quote(os.fspath(directory))} && "
    echo(f"wrote {path}")
    echo("next:")
    echo(f"  {go}lockstep run --nproc-per-node 2 {shlex.quote(path.name)}")
    echo(f"  {go}lockstep verify {shlex.quote(path.name)}")


def _free_name(path: Path) -> str:
    names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return shlex.quote(os.fspath(next(name for name in names if not os.path.lexists(name))))
