"""``lockstep checkpoint``: what is in one, whether it is sound, and a model out of it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from lockstep.checkpoint.files import copy, flush
from lockstep.checkpoint.manifest import FORMAT, Manifest, verify_file
from lockstep.checkpoint.store import BEST, Store, find_checkpoint
from lockstep.cli import headers, tables
from lockstep.cli.headers import ModelInfo, TensorInfo
from lockstep.cli.tables import Page, say
from lockstep.cli.terminal import open_console
from lockstep.cli.words import NOTHING, counted, size, span
from lockstep.errors import CheckpointError, ConfigError, unknown_name
from lockstep.recovery.position import Position

_SUFFIX = ".safetensors"
_STATE = "state.json"
_TRIES = 5
_LEFT_OUT = ("None", "False")
"""Options that are not set."""
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
_INSPECT_EPILOG = """
\b
Examples:
  lockstep checkpoint inspect runs/train-1
      the newest checkpoint of a run
  lockstep checkpoint inspect runs/train-1/checkpoints/step-00000120 --tensors
      a certain one, with the name, dtype and shape of every tensor
  lockstep checkpoint inspect runs/train-1/best --json | jq .metric
      for other programs
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
_CONTEXT = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}

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


@click.group("checkpoint", cls=_Verbs, epilog=_EPILOG, context_settings=_CONTEXT)
def command() -> None:
    """Look into a checkpoint, check it, or take a model out of it.

    In each of them, PATH is a checkpoint's directory, or a run's for its newest one, or RUN/best for the weights kept by
    team.best(). No code of a checkpoint is executed, and nothing in it is changed.
    """


# inspect


@command.command("inspect", short_help="Show what is in a checkpoint.", epilog=_INSPECT_EPILOG, context_settings=_CONTEXT)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--tensors", "with_tensors", is_flag=True, help="Also every tensor's name, dtype and shape.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the manifest, and what was found beside it.")
def inspect_command(path: Path, with_tensors: bool, as_json: bool) -> None:
    """Show what is in a checkpoint: when it was cut, by what, with which settings; its models and files.

    PATH is a checkpoint's directory, or a run's for its newest one, or RUN/best for the weights kept by team.best().

    Only manifest and headers are read. Whether all is as it was written, lockstep checkpoint verify finds out.
    """
    directory, manifest = _read_manifest(path)
    tensors: dict[str, list[TensorInfo]] = {}
    remarks: dict[str, str] = {}
    for name in manifest.files:
        try:
            verify_file(directory, manifest, name, sizes_only=True)
            if name.endswith(_SUFFIX):
                tensors[name] = headers.read_header(directory / name)
        except CheckpointError as error:
            remarks[name] = str(error)
    models = headers.describe_models(manifest, tensors)
    state = _read_state(directory)
    best = manifest.metric if manifest.kind == "weights" else _best_so_far(state)
    current = _current_options(manifest, state)
    if as_json:
        found = {
            "directory": str(directory),
            "format": FORMAT,
            **dataclasses.asdict(manifest),
            "bytes": manifest.num_bytes,
            "best": best,
            "current": current,
            "models": [model._asdict() for model in models],
            "damage": remarks,
        }
        if with_tensors:
            found["tensors"] = {name: [info._asdict() for info in infos] for name, infos in tensors.items()}
        click.echo(json.dumps(found, indent=1, allow_nan=False))
        return
    console = open_console()
    say(console, str(directory), "bold")
    facts = [(key, value) for key, value in _facts(directory, manifest, best, current) if value]
    model_cells = [_model_cells(model) for model in models]
    file_cells = [(name, size(entry["bytes"]), _num(tensors.get(name))) for name, entry in manifest.files.items()]
    for page in (
        Page(("", ""), facts),
        Page(("model", "type", "parameters", "in buffers", "dtype", "file"), model_cells, ("parameters", "in buffers")),
        Page(("file", "size", "tensors"), file_cells, ("size", "tensors")),
        Page(("file", "tensor", "dtype", "shape"), _tensor_cells(tensors) if with_tensors else []),
    ):
        if page.rows:
            say(console, "")
            tables.show(console, page)
    say(console, "")
    for remark in remarks.values():
        say(console, remark, "red")
    total = f"{counted(len(manifest.files), 'file')}, {size(manifest.num_bytes)}"
    say(console, f"{total}. To compare them with their checksums: lockstep checkpoint verify {directory}")


def _read_manifest(path: Path) -> tuple[Path, Manifest]:
    """The checkpoint that a path means, and its manifest; of a run that goes on, the newest may be gone a moment later."""
    for _ in range(_TRIES - 1):
        directory = find_checkpoint(path)
        try:
            return directory, Manifest.read(directory)
        except CheckpointError:
            if directory.exists():
                raise
    directory = find_checkpoint(path)
    return directory, Manifest.read(directory)


def _read_state(directory: Path) -> dict[str, Any]:
    """What is in ``state.json``; empty where there is none, or it is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((directory / _STATE).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def _best_so_far(state: dict[str, Any]) -> float | None:
    best = state.get("best")
    return float(best) if isinstance(best, (int, float)) else None


def _current_options(manifest: Manifest, state: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The options of each optimizer and schedule, by its name, as they were when the checkpoint was cut.

    The manifest has them as they were when the object was prepared: a schedule has moved on since, and with it the rates.
    """
    states = state.get("objects")
    states = states if isinstance(states, list) else []
    found = {}
    for record, own in itertools.zip_longest(manifest.objects, states[: len(manifest.objects)]):
        if "file" not in record:
            options = record["options"]
            found[record["name"]] = {name: _current(own, name, str(options[name])) for name in options}
    return found


def _current(state: Any, name: str, prepared: str) -> str:
    """One option, as ``Content.options`` names it, in the state of its optimizer or schedule."""
    name, _, number = name.partition(" of group ")
    with contextlib.suppress(KeyError, IndexError, TypeError, ValueError):
        holder = state["param_groups"][int(number or 1) - 1] if "param_groups" in state else state
        return repr(_value(holder[name]))
    return prepared if prepared in _LEFT_OUT else f"{prepared} (when prepared)"


def _value(content: Any) -> Any:
    """A plain value of ``state.json``, of which ``checkpoint.tree`` tells.

    Raises:
        ValueError: it is none.
    """
    if isinstance(content, list):
        return [_value(item) for item in content]
    if not isinstance(content, dict):
        return content
    if content.keys() == {"$tuple"}:
        return tuple(_value(item) for item in content["$tuple"])
    if content.keys() == {"$float"}:
        return float(content["$float"])
    raise ValueError("a tensor, or something else that is not here")


def _facts(
    directory: Path, manifest: Manifest, best: float | None, current: dict[str, dict[str, str]]
) -> Iterator[tuple[str, str]]:
    """What is worth saying, each with what it is; empty where there is nothing to say."""
    is_whole = manifest.kind == "checkpoint"
    others = [path.name for path in Store(directory.absolute().parent.parent).all() if path != directory.absolute()]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time_s))
    yield "what", "all that the run needs to resume" if is_whole else "the best weights, kept by team.best()"
    yield "step", f"{manifest.step}, in epoch {manifest.epoch + 1}"
    yield "cut", f"{when} ({span(time.time() - manifest.time_s)} ago), by {counted(manifest.world_size, 'process', 'es')}"
    if is_whole:
        goes_on = f"not at its end: resumes at {Position.from_json(manifest.position)}"
        yield "script", "had come to its end" if manifest.finished else goes_on
    yield ("best so far" if is_whole else "value"), "" if best is None else f"{best:.6g}"
    yield "born with", _listed(manifest.birth)
    yield "versions", _listed(manifest.versions)
    yield "numerics", _listed(manifest.numerics)
    for record in manifest.objects:
        if "file" not in record:
            options = {name: value for name, value in current[record["name"]].items() if value not in _LEFT_OUT}
            yield record["name"], f"{record['type']} {_listed(options)}".strip()
    yield "registered", ", ".join(manifest.registered)
    for number, lines in enumerate(manifest.loaders, 1):
        yield f"loader {number}", ", ".join(lines)
    yield "others", ", ".join(others) if is_whole and directory.absolute().parent.name == "checkpoints" else ""


def _listed(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _model_cells(model: ModelInfo) -> tuple[str, ...]:
    numbers = [NOTHING if number is None else f"{number:,}" for number in (model.num_parameters, model.num_in_buffers)]
    return (model.name, model.type, *numbers, ", ".join(model.dtypes) or NOTHING, model.file)


def _tensor_cells(tensors: dict[str, list[TensorInfo]]) -> list[tuple[str, ...]]:
    return [(file, info.name, info.dtype, str(list(info.shape))) for file, infos in tensors.items() for info in infos]


def _num(tensors: list[TensorInfo] | None) -> str:
    return NOTHING if tensors is None else str(len(tensors))


# verify


@command.command(
    "verify", short_help="Compare a checkpoint with its checksums.", epilog=_VERIFY_EPILOG, context_settings=_CONTEXT
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
        place, manifest, found = _examine_newest(path, console)
        if found:
            raise CheckpointError("; ".join(found))
        _say_sound(place, manifest, console)
        return
    num_examined = num_wrong = 0
    for place in _all_checkpoints(path):
        manifest, found = _examine(place, console)
        if found and not place.exists():
            continue  # a run that goes on has removed it meanwhile
        num_examined += 1
        if found:
            num_wrong += 1
            say(console, f"{place}: {'; '.join(found)}", "red")
        else:
            _say_sound(place, manifest, console)
    if num_wrong:
        raise CheckpointError(f"{num_wrong} of {counted(num_examined, 'checkpoint')} in {path} cannot be used")


def _say_sound(place: Path, manifest: Manifest | None, console: Console) -> None:
    assert manifest is not None
    total = f"{counted(len(manifest.files), 'file')}, {size(manifest.num_bytes)}"
    say(console, f"{place}: sound (step {manifest.step}, {total})", "green")


def _all_checkpoints(path: Path) -> list[Path]:
    """Those of a run, the oldest first, and then the best weights."""
    run_dir = path.absolute().parent if path.absolute().name == "checkpoints" else path
    found = [*reversed(Store(run_dir).all()), *([run_dir / BEST] if (run_dir / BEST).is_dir() else [])]
    if not found and find_checkpoint(path):
        raise ConfigError(f"--all is for a run's directory, and {path} is one checkpoint: leave --all out")
    return found


def _examine_newest(path: Path, console: Console) -> tuple[Path, Manifest | None, list[str]]:
    for _ in range(_TRIES):
        place = find_checkpoint(path)
        manifest, found = _examine(place, console)
        if not found or place.exists():
            break  # else a run that goes on has put a newer one in its place
    return place, manifest, found


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
    "export", short_help="Write a model's weights to a .safetensors file.", epilog=_EXPORT_EPILOG, context_settings=_CONTEXT
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
        directory, manifest = _read_manifest(path)
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
