"""``lockstep checkpoint``: inspect, verify or export a checkpoint."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from lockstep._base.atomic import flush
from lockstep._base.errors import CheckpointError, ConfigError, unknown_name
from lockstep._base.regular_files import open_to_read
from lockstep._cli.echo import Styled, echo, echo_json
from lockstep._cli.options import CONTEXT
from lockstep._state.checkpoint.manifest import Manifest, is_intact, verify_file
from lockstep._state.checkpoint.parts import weights_files
from lockstep._state.checkpoint.store import BEST, Store, find_checkpoint
from lockstep._world.machine.sizes import counted, size

T = TypeVar("T")

_SUFFIX = ".safetensors"
_EPILOG = """
\b
Examples:
  lockstep checkpoint inspect runs/train-1
      the newest checkpoint of a run, as JSON: step, settings, objects, files
  lockstep checkpoint inspect runs/train-1/best | jq .metric
      the value for which the best weights were kept
  lockstep checkpoint verify runs/train-1 --all
      the checksums of all checkpoints of a run
  lockstep checkpoint export runs/train-1/best weights.safetensors
      the model's weights, in a file that can be loaded without lockstep

Use lockstep runs to list runs, and lockstep.load_weights(PATH) to load weights in a script.
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


@click.group("checkpoint", epilog=_EPILOG, context_settings=CONTEXT)
def command() -> None:
    """Inspect, verify or export a checkpoint.

    In all commands, PATH is a checkpoint directory, a run directory (for its newest checkpoint), or
    RUN/best for the weights kept by team.best(). Code in a checkpoint is never executed, and the
    checkpoint is never changed."""


@command.command("inspect", short_help="Print the contents of a checkpoint as JSON.", context_settings=CONTEXT)
@click.argument("path", type=click.Path(path_type=Path))
def inspect_command(path: Path) -> None:
    """Print the manifest of a checkpoint as JSON, and which of its files have the wrong size.

    Each parameter of a prepared object has a line with its shape and dtype. lockstep checkpoint
    verify also reads the files."""
    directory, manifest = _read(path, lambda directory, manifest: (directory, manifest))
    about = {"directory": str(directory), **dataclasses.asdict(manifest), "bytes": manifest.num_bytes}
    echo_json({**about, "damage": _damage(directory, manifest, sizes_only=True)})


@command.command("verify", short_help="Compare a checkpoint with its checksums.", context_settings=CONTEXT)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--all", "all_of_run", is_flag=True, help="Verify all checkpoints of the run in PATH and its best weights.")
def verify_command(path: Path, all_of_run: bool) -> None:
    """Read a whole checkpoint, and compare it with the checksums recorded when it was saved.

    Each damaged file is listed, and the exit status is 1 if there is any. A run that resumes
    verifies its checkpoint in the same way, and falls back to the previous checkpoint if it is
    damaged."""
    if not all_of_run:
        _read(path, _examine)
        return
    num_examined = num_damaged = 0
    for directory in _all_checkpoints(path):
        try:
            _read(directory, _examine)
        except CheckpointError as error:
            if not directory.exists():
                continue  # an active run has deleted it meanwhile
            num_damaged += 1
            echo(Styled(f"{directory}: {error}", "red"))
        num_examined += 1
    if num_damaged:
        raise CheckpointError(
            f"{num_damaged} of {counted(num_examined, 'checkpoint')} in {path} are damaged", code="checkpoints-damaged"
        )


@command.command(
    "export",
    short_help="Write the weights of a model to a .safetensors file.",
    epilog=_EXPORT_EPILOG,
    context_settings=CONTEXT,
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

    Parameters have the names of the script's model. The checksum is verified, and OUT is written
    atomically."""
    if out.suffix != _SUFFIX:
        raise ConfigError(f"{out}: the name of a safetensors file must end in {_SUFFIX}.", code="export-name")
    if out.is_dir():
        raise ConfigError(f"{out} is a directory. Pass the name of a file.", code="export-to-directory")
    if out.exists() and not force:
        raise ConfigError(f"{out} already exists. Use another name, or --force to overwrite it.", code="file-exists")

    def export(directory: Path, manifest: Manifest) -> Manifest:
        _write(directory, manifest, _files_of(manifest, directory, model), out)
        return manifest

    manifest = _read(path, export)
    echo(f"{out}: {model} of step {manifest.step}, {size(out.stat().st_size)}")
    echo("To load it without lockstep:")
    echo("  from safetensors.torch import load_file")
    echo(f"  model.load_state_dict(load_file({str(out)!r}))")


def _read(path: Path, read: Callable[[Path, Manifest], T]) -> T:
    """Find the checkpoint for a path, and read from it."""
    directory = find_checkpoint(path)
    return read(directory, Manifest.read(directory))


def _all_checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, and then its best weights."""
    run_dir = path.absolute().parent if path.absolute().name == "checkpoints" else path
    checkpoints = [*reversed(Store(run_dir).all()), *([run_dir / BEST] if (run_dir / BEST).is_dir() else [])]
    if not checkpoints and find_checkpoint(path):
        raise ConfigError(f"--all requires a run directory, but {path} is one checkpoint. Remove --all.", code="all-of-one")
    return checkpoints


def _examine(directory: Path, manifest: Manifest) -> None:
    """Read all files of a checkpoint, and say that they are intact.

    Raises:
        CheckpointError: some are not; it names each.
    """
    if damage := _damage(directory, manifest):
        raise CheckpointError("; ".join(damage.values()), code="checkpoint-damaged")
    total = f"{counted(len(manifest.files), 'file')}, {size(manifest.num_bytes)}"
    echo(Styled(f"{directory}: intact (step {manifest.step}, {total})", "green"))


def _damage(directory: Path, manifest: Manifest, *, sizes_only: bool = False) -> dict[str, str]:
    """What is wrong with each damaged file."""
    damage = {}
    for name in manifest.files:
        try:
            verify_file(directory, manifest, name, sizes_only=sizes_only)
        except CheckpointError as error:
            damage[name] = str(error)
    return damage


def _files_of(manifest: Manifest, directory: Path, model: str) -> list[str]:
    files = {r["name"]: weights_files(r["file"], manifest.files) for r in manifest.objects if "file" in r}
    if not files:
        raise CheckpointError(f"{directory} contains no model: the script passed none to team.prepare()", code="no-model")
    if model not in files:
        raise unknown_name(f"model of {directory}", model, files)
    return files[model]


def _write(directory: Path, manifest: Manifest, files: list[str], out: Path) -> None:
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        if len(files) == 1:
            _copy(directory, manifest, files[0], unfinished, out)
        else:
            _join(directory, manifest, files, unfinished)
        os.replace(unfinished, out)  # noqa: PTH105
        flush(out.absolute().parent)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {out} from {directory / files[0]}: {error}", code="file-not-writable"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _copy(directory: Path, manifest: Manifest, file: str, unfinished: Path, out: Path) -> None:
    verify_file(directory, manifest, file, sizes_only=True)
    with open_to_read(directory / file) as reader, unfinished.open("xb") as writer:
        shutil.copyfileobj(reader, writer)
    flush(unfinished)
    if not is_intact(unfinished, manifest.files[file]):
        raise CheckpointError(
            f"{directory / file} is damaged: its checksum differs from the recorded one. {out} was not written. Use another "
            "checkpoint (lockstep checkpoint verify RUN --all lists the intact ones).",
            code="checkpoint-damaged",
        )


def _join(directory: Path, manifest: Manifest, files: list[str], unfinished: Path) -> None:
    """Write one file of the parts of several ranks, a tensor at a time."""
    from lockstep._state.checkpoint.tensorfile import write_tensors  # imports torch
    from lockstep._state.checkpoint.weights import Tensors

    for file in files:
        verify_file(directory, manifest, file)
    write_tensors(unfinished, Tensors([directory / file for file in files]))
