"""``lockstep checkpoint``: what is in one, whether it is sound, and a model out of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

from lockstep.atomic import flush
from lockstep.checkpoint.files import copy
from lockstep.checkpoint.manifest import Manifest, verify_file
from lockstep.checkpoint.store import BEST, Store, find_checkpoint
from lockstep.cli import headers
from lockstep.cli.headers import read_manifest
from lockstep.cli.inspect import inspect_command
from lockstep.cli.options import CONTEXT
from lockstep.cli.tables import say
from lockstep.cli.terminal import open_console
from lockstep.cli.words import counted, size
from lockstep.errors import CheckpointError, ConfigError, unknown_name

_SUFFIX = ".safetensors"
_TRIES = 5
_BAR_FROM_BYTES = 200_000_000
"""Less is read before a bar could be looked at."""
_EPILOG = """
\b
Examples:
  lockstep checkpoint inspect runs/train-1
      the newest checkpoint of a run: step, settings, models, files
  lockstep checkpoint verify runs/train-1 --all
      read all checkpoints of a run, and compare them with their checksums
  lockstep checkpoint export runs/train-1/best weights.safetensors
      the weights of the model, in a file that loads without lockstep

lockstep runs lists the runs. To load weights in a script: lockstep.load_weights(PATH).
"""
_VERIFY_EPILOG = """
\b
Examples:
  lockstep checkpoint verify runs/train-1
      the newest checkpoint of a run
  lockstep checkpoint verify runs/train-1 --all
      all of them, the best weights among them
  lockstep checkpoint verify backup/step-00000120 && rm -r old
      the exit status is 0 if all is sound, else 1
"""
_EXPORT_EPILOG = """
\b
Examples:
  lockstep checkpoint export runs/train-1/best weights.safetensors
      the best weights
  lockstep checkpoint export runs/train-1 generator.safetensors --model model-2
      the second model that the script prepared, out of the newest checkpoint
  lockstep checkpoint export runs/train-1 ema.safetensors --model average --force
      the averaged model, in place of an older file

\b
To load it, with safetensors alone:
  from safetensors.torch import load_file
  model.load_state_dict(load_file("weights.safetensors"))
"""

Progress = Callable[[int], None]
"""Called with the number of bytes that were read since."""


class _Verbs(click.Group):
    """Tells who leaves the second verb out what there is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # not by the alphabet

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            hint = f" For example: lockstep checkpoint inspect {args[0]}" if Path(args[0]).exists() else ""
            ctx.fail(f"unknown command {args[0]!r}: choose one of {', '.join(self.commands)}.{hint}")
        return super().resolve_command(ctx, args)


@click.group("checkpoint", cls=_Verbs, epilog=_EPILOG, context_settings=CONTEXT)
def command() -> None:
    """Look into a checkpoint, check it, or take a model out of it.

    In each of them, PATH is a checkpoint's directory, or a run's for its newest one, or RUN/best for the weights kept by
    team.best(). No code of a checkpoint is executed, and nothing in it is changed.
    """


command.add_command(inspect_command)


# verify


@command.command(
    "verify", short_help="Compare a checkpoint with its checksums.", epilog=_VERIFY_EPILOG, context_settings=CONTEXT
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--all", "every", is_flag=True, help="All checkpoints of the run in PATH, and its best weights.")
def verify_command(path: Path, every: bool) -> None:
    """Read all of a checkpoint, and compare it with the checksums that were taken when it was written.

    PATH is a checkpoint's directory, or a run's for its newest one, or RUN/best for the weights kept by team.best().

    The exit status is 1 if anything was damaged; each damaged file is named. A run that resumes does the same with
    the checkpoint that it resumes from, and takes the one before it where that was damaged.
    """
    console = open_console()
    if not every:
        directory, manifest, found = _examine_newest(path, console)
        if found:
            raise CheckpointError("; ".join(found))
        _say_sound(directory, manifest, console)
        return
    num_examined = num_wrong = 0
    for directory in _all_checkpoints(path):
        manifest, found = _examine(directory, console)
        if found and not directory.exists():
            continue  # a run that goes on has removed it meanwhile
        num_examined += 1
        if found:
            num_wrong += 1
            say(console, f"{directory}: {'; '.join(found)}", "red")
        else:
            _say_sound(directory, manifest, console)
    if num_wrong:
        raise CheckpointError(f"{num_wrong} of {counted(num_examined, 'checkpoint')} in {path} cannot be used")


def _say_sound(directory: Path, manifest: Manifest | None, console: Console) -> None:
    assert manifest is not None
    total = f"{counted(len(manifest.files), 'file')}, {size(manifest.num_bytes)}"
    say(console, f"{directory}: sound (step {manifest.step}, {total})", "green")


def _all_checkpoints(path: Path) -> list[Path]:
    """Those of a run, the oldest first, and then the best weights."""
    run_dir = path.absolute().parent if path.absolute().name == "checkpoints" else path
    found = [*reversed(Store(run_dir).all()), *([run_dir / BEST] if (run_dir / BEST).is_dir() else [])]
    if not found and find_checkpoint(path):
        raise ConfigError(f"--all is for a run's directory, and {path} is one checkpoint: leave --all out")
    return found


def _examine_newest(path: Path, console: Console) -> tuple[Path, Manifest | None, list[str]]:
    for _ in range(_TRIES):
        directory = find_checkpoint(path)
        manifest, found = _examine(directory, console)
        if not found or directory.exists():
            break  # else a run that goes on has put a newer one in its place
    return directory, manifest, found


def _examine(directory: Path, console: Console) -> tuple[Manifest | None, list[str]]:
    """The manifest of a checkpoint (None: it cannot be read), and all that is wrong with it."""
    for _ in range(_TRIES):
        found: list[str] = []
        try:
            manifest = Manifest.read(directory)
        except CheckpointError as error:
            return None, [str(error)]
        with _bar(console, f"reading {directory}", manifest.num_bytes) as progress:
            for name in manifest.files:
                try:
                    verify_file(directory, manifest, name, progress=progress)
                except CheckpointError as error:
                    found.append(str(error))
        if not found or not _was_replaced(directory, manifest):
            break
    return manifest, found


def _was_replaced(directory: Path, manifest: Manifest) -> bool:
    """Whether a run that goes on has put another checkpoint in its place, or removed it."""
    try:
        return Manifest.read(directory) != manifest
    except CheckpointError:
        return not directory.exists()


@contextlib.contextmanager
def _bar(console: Console, what: str, num_bytes: int) -> Iterator[Progress | None]:
    """A bar on a terminal, where there is enough to read."""
    if not console.is_terminal or num_bytes < _BAR_FROM_BYTES:
        yield None
        return
    from rich import progress  # takes a while to import

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=num_bytes)
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
    help="Which one: model, model-2, ... in the order in which the script prepared them; average for an AveragedModel.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
def export_command(path: Path, out: Path, model: str, force: bool) -> None:
    """Write the weights of a model to OUT, a .safetensors file that loads without lockstep.

    PATH is a checkpoint's directory, or a run's for its newest one, or RUN/best for the weights kept by team.best().

    The names are those of the script's own model. They are compared with their checksum, and OUT is written whole or not
    at all.
    """
    _check_target(out, force)
    console = open_console()
    for attempt in range(_TRIES):
        directory, manifest = read_manifest(path)
        try:
            file = _file_of(manifest, directory, model)
            _copy(directory, manifest, file, out, force, console)
            break
        except CheckpointError:
            if attempt == _TRIES - 1 or not _was_replaced(directory, manifest):
                raise
    tensors = headers.read_header(out)
    (info,) = [m for m in headers.describe_models(manifest, {file: tensors}) if m.name == model]
    total = f"{counted(info.num_parameters or 0, 'parameter')} in {counted(len(tensors), 'tensor')}"
    say(console, f"{out}: {model} ({info.type}) of step {manifest.step}, {total}, {size(manifest.files[file]['bytes'])}")
    say(console, "To load it, without lockstep:")
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
            found = copy(directory / file, unfinished, progress)
        if found != manifest.files[file]["sha256"]:
            raise CheckpointError(
                f"{directory / file} was damaged: its content is not what was written (SHA-256). {out} was not written; take "
                "another checkpoint (lockstep checkpoint verify RUN --all says which are sound)"
            )
        _check_target(out, force)  # copying takes a while
        os.replace(unfinished, out)  # noqa: PTH105
        flush(out.absolute().parent)
    except OSError as error:
        raise CheckpointError(f"{out} could not be written from {directory / file}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
