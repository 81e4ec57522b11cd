"""``lockstep checkpoint``: inspect or verify a checkpoint, or export a model from it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

from lockstep.base.atomic import flush
from lockstep.base.errors import CheckpointError, ConfigError, unknown_name
from lockstep.cli.options import CONTEXT
from lockstep.cli.tables import say
from lockstep.cli.terminal import open_console
from lockstep.state.checkpoint.files import copy
from lockstep.state.checkpoint.manifest import Manifest, verify_file
from lockstep.state.checkpoint.store import BEST, Store, find_checkpoint
from lockstep.tools.checkpoint import headers
from lockstep.tools.checkpoint.headers import read_checkpoint
from lockstep.tools.checkpoint.inspect import inspect_command
from lockstep.world.machine.sizes import counted, size

_SUFFIX = ".safetensors"
_BAR_FROM_BYTES = 200_000_000
"""Smaller files are read too quickly for a progress bar."""
_EPILOG = """
\b
Examples:
  lockstep checkpoint inspect runs/train-1
      the newest checkpoint of a run: step, settings, models, files
  lockstep checkpoint verify runs/train-1 --all
      verify the checksums of all checkpoints of a run
  lockstep checkpoint export runs/train-1/best weights.safetensors
      the weights of the model, in a file that can be loaded without lockstep

Use lockstep runs to list runs, and lockstep.load_weights(PATH) to load weights in a script.
"""
_VERIFY_EPILOG = """
\b
Examples:
  lockstep checkpoint verify runs/train-1
      the newest checkpoint of a run
  lockstep checkpoint verify runs/train-1 --all
      all of them, including the best weights
  lockstep checkpoint verify backup/step-00000120 && rm -r old
      the exit status is 0 if the checkpoint is intact, else 1
"""
_EXPORT_EPILOG = """
\b
Examples:
  lockstep checkpoint export runs/train-1/best weights.safetensors
      the best weights
  lockstep checkpoint export runs/train-1 gen.safetensors --model model-2
      the second model that the script prepared, from the newest checkpoint
  lockstep checkpoint export runs/train-1 e.safetensors --model average --force
      the averaged model, replacing an older file

\b
To load it with safetensors alone:
  from safetensors.torch import load_file
  model.load_state_dict(load_file("weights.safetensors"))
"""

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


class _Verbs(click.Group):
    """A group whose error for a missing subcommand lists them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of definition

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            hint = f" For example: lockstep checkpoint inspect {args[0]}" if Path(args[0]).exists() else ""
            ctx.fail(f"unknown command {args[0]!r}: choose one of {', '.join(self.commands)}.{hint}")
        return super().resolve_command(ctx, args)


@click.group("checkpoint", cls=_Verbs, epilog=_EPILOG, context_settings=CONTEXT)
def command() -> None:
    """Inspect or verify a checkpoint, or export a model from it.

    In all commands, PATH is a checkpoint directory, a run directory (for its newest checkpoint), or RUN/best for the
    weights kept by team.best(). Code in a checkpoint is never executed, and nothing in it is changed.
    """


command.add_command(inspect_command)


# verify


@command.command(
    "verify", short_help="Verify the checksums of a checkpoint.", epilog=_VERIFY_EPILOG, context_settings=CONTEXT
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--all", "all_of_run", is_flag=True, help="Verify all checkpoints of the run in PATH, and its best weights.")
def verify_command(path: Path, all_of_run: bool) -> None:
    """Read a whole checkpoint, and compare it with the checksums recorded when it was saved.

    PATH is a checkpoint directory, a run directory (for its newest checkpoint), or RUN/best for the weights kept by
    team.best().

    Each damaged file is named, and the exit status is 1 if there is any. A run that resumes verifies its checkpoint in
    the same way, and falls back to the one before if it is damaged.
    """
    console = open_console()
    examine = functools.partial(_examine, console=console)
    if not all_of_run:
        read_checkpoint(path, examine)
        return
    num_examined = num_damaged = 0
    for directory in _all_checkpoints(path):
        try:
            read_checkpoint(directory, examine)
        except CheckpointError as error:
            if not directory.exists():
                continue  # an active run has deleted it meanwhile
            num_damaged += 1
            say(console, f"{directory}: {error}", "red")
        num_examined += 1
    if num_damaged:
        raise CheckpointError(f"{num_damaged} of {counted(num_examined, 'checkpoint')} in {path} cannot be used")


def _all_checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, and then its best weights."""
    run_dir = path.absolute().parent if path.absolute().name == "checkpoints" else path
    checkpoints = [*reversed(Store(run_dir).all()), *([run_dir / BEST] if (run_dir / BEST).is_dir() else [])]
    if not checkpoints and find_checkpoint(path):
        raise ConfigError(f"--all is for a run's directory, and {path} is one checkpoint: leave --all out")
    return checkpoints


def _examine(directory: Path, manifest: Manifest, console: Console) -> None:
    """Read all files of a checkpoint, and say that they are intact.

    Raises:
        CheckpointError: some are not; it names each.
    """
    problems = []
    with _bar(console, f"reading {directory}", manifest.num_bytes) as progress:
        for name in manifest.files:
            try:
                verify_file(directory, manifest, name, progress=progress)
            except CheckpointError as error:
                problems.append(str(error))
    if problems:
        raise CheckpointError("; ".join(problems))
    total = f"{counted(len(manifest.files), 'file')}, {size(manifest.num_bytes)}"
    say(console, f"{directory}: intact (step {manifest.step}, {total})", "green")


@contextlib.contextmanager
def _bar(console: Console, description: str, num_bytes: int) -> Iterator[Progress | None]:
    """A progress bar on a terminal, if there is enough to read."""
    if not console.is_terminal or num_bytes < _BAR_FROM_BYTES:
        yield None
        return
    from rich import progress  # slow to import

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=num_bytes)
        yield lambda number: bar.advance(task, number)


# export


@command.command(
    "export", short_help="Write a model's weights to a .safetensors file.", epilog=_EXPORT_EPILOG, context_settings=CONTEXT
)
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--model",
    default="model",
    show_default=True,
    metavar="NAME",
    help="Model to export: model, model-2, ... in the order of preparation; average for an AveragedModel.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
def export_command(path: Path, out: Path, model: str, force: bool) -> None:
    """Write the weights of a model to OUT, a .safetensors file that can be loaded without lockstep.

    PATH is a checkpoint directory, a run directory (for its newest checkpoint), or RUN/best for the weights kept by
    team.best().

    The names are those of the script's model. The checksum is verified, and OUT is written atomically.
    """
    _check_target(out, force)
    console = open_console()

    def export(directory: Path, manifest: Manifest) -> tuple[Manifest, str, list[headers.TensorInfo]]:
        file = _file_of(manifest, directory, model)
        tensors = headers.read_header(directory / file)  # before anything is written
        _copy(directory, manifest, file, out, force, console)
        return manifest, file, tensors

    manifest, file, tensors = read_checkpoint(path, export)
    (info,) = [m for m in headers.describe_models(manifest, {file: tensors}) if m.name == model]
    total = f"{counted(info.num_parameters or 0, 'parameter')} in {counted(len(tensors), 'tensor')}"
    say(console, f"{out}: {model} ({info.type}) of step {manifest.step}, {total}, {size(manifest.files[file]['bytes'])}")
    say(console, "To load it without lockstep:")
    say(console, "  from safetensors.torch import load_file")
    say(console, f"  model.load_state_dict(load_file({str(out)!r}))")


def _check_target(out: Path, force: bool) -> None:
    if out.suffix != _SUFFIX:
        raise ConfigError(f"{out} will be a safetensors file: give it a name that ends in {_SUFFIX}")
    if out.is_dir():
        raise ConfigError(f"{out} is a directory: give the name of a file")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists: give another name, or --force to overwrite it")
    if not out.parent.is_dir():
        raise ConfigError(f"{out} cannot be written: {out.parent}: no such directory")


def _file_of(manifest: Manifest, directory: Path, model: str) -> str:
    files = {record["name"]: str(record["file"]) for record in manifest.objects if "file" in record}
    if not files:
        raise CheckpointError(f"{directory} holds no model: the script gave none to team.prepare()")
    if model not in files:
        raise unknown_name(f"model of {directory}", model, files)
    return files[model]


def _copy(directory: Path, manifest: Manifest, file: str, out: Path, force: bool, console: Console) -> None:
    verify_file(directory, manifest, file, sizes_only=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        with _bar(console, f"copying {file}", manifest.files[file]["bytes"]) as progress:
            digest = copy(directory / file, unfinished, progress)
        if digest != manifest.files[file]["sha256"]:
            raise CheckpointError(
                f"{directory / file} is damaged: its content is not what was written (SHA-256). {out} was not written; use "
                "another checkpoint (lockstep checkpoint verify RUN --all lists those that are intact)"
            )
        _check_target(out, force)  # copying takes a while
        os.replace(unfinished, out)  # noqa: PTH105
        flush(out.absolute().parent)
    except OSError as error:
        raise CheckpointError(f"{out} could not be written from {directory / file}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
