"""``lockstep checkpoint inspect``: show the contents of a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lockstep.base.errors import CheckpointError
from lockstep.base.regular import read_bytes
from lockstep.base.shapes import parse
from lockstep.cli import tables
from lockstep.cli.echo import echo_json
from lockstep.cli.options import CONTEXT
from lockstep.cli.tables import Page, say
from lockstep.cli.terminal import open_console
from lockstep.state.checkpoint.manifest import FORMAT, Manifest, verify_file
from lockstep.state.checkpoint.store import Store
from lockstep.state.recovery.position import ScriptPosition
from lockstep.tools.checkpoint import headers
from lockstep.tools.checkpoint.headers import ModelInfo, TensorInfo, read_checkpoint
from lockstep.world.machine.sizes import NOTHING, counted, size, span

_SUFFIX = ".safetensors"
_STATE = "state.json"
_LEFT_OUT = ("None", "False")
"""Values of unset options."""
_EPILOG = """
\b
Examples:
  lockstep checkpoint inspect runs/train-1
      the newest checkpoint of a run
  lockstep checkpoint inspect runs/train-1/checkpoints/step-00000120 --tensors
      a particular one, with the name, dtype and shape of every tensor
  lockstep checkpoint inspect runs/train-1/best --json | jq .metric
      for other programs
"""


@click.command("inspect", short_help="Show the contents of a checkpoint.", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--tensors", "with_tensors", is_flag=True, help="Also list the name, dtype and shape of every tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object: the manifest, and details from the files.")
def inspect_command(path: Path, with_tensors: bool, as_json: bool) -> None:
    """Show when and how a checkpoint was saved, the settings of its run, its models and files.

    PATH is a checkpoint directory, a run directory (for its newest checkpoint), or RUN/best for the weights kept by
    team.best().

    Only the manifest and file headers are read; use lockstep checkpoint verify to check the contents.
    """
    directory, manifest = read_checkpoint(path, lambda directory, manifest: (directory, manifest))
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
    best = manifest.metric if manifest.kind == "weights" else _best_so_far(directory)
    if as_json:
        record = {
            "directory": str(directory),
            "format": FORMAT,
            **dataclasses.asdict(manifest),
            "bytes": manifest.num_bytes,
            "best": best,
            "models": [model._asdict() for model in models],
            "damage": remarks,
        }
        if with_tensors:
            record["tensors"] = {name: [info._asdict() for info in infos] for name, infos in tensors.items()}
        echo_json(record)
        return
    console = open_console()
    say(console, str(directory), "bold")
    facts = [(key, value) for key, value in _facts(directory, manifest, best) if value]
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
    say(console, f"{total}. To verify their checksums: lockstep checkpoint verify {directory}")


def _best_so_far(directory: Path) -> float | None:
    """As ``state.json`` has it; None if there is none, or the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        best = parse(read_bytes(directory / _STATE)).get("best")
        return float(best) if isinstance(best, (int, float)) else None
    return None


def _facts(directory: Path, manifest: Manifest, best: float | None) -> Iterator[tuple[str, str]]:
    """Labels and texts of the facts to show; empty texts are left out."""
    is_whole = manifest.kind == "checkpoint"
    other_names = [path.name for path in Store(directory.absolute().parent.parent).all() if path != directory.absolute()]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time_s))
    yield "what", "all that the run needs to resume" if is_whole else "the best weights, kept by team.best()"
    yield "step", f"{manifest.step}, in epoch {manifest.epoch + 1}"
    yield (
        "saved",
        f"{when} ({span(time.time() - manifest.time_s)} ago), by {counted(manifest.world_size, 'process', 'processes')}",
    )
    if is_whole:
        resumes = f"not finished: resumes at {ScriptPosition.from_json(manifest.position)}"
        yield "script", "finished" if manifest.finished else resumes
    yield ("best so far" if is_whole else "value"), "" if best is None else f"{best:.6g}"
    yield "settings", _listed(manifest.birth)
    yield "versions", _listed(manifest.versions)
    yield "numerics", _listed(manifest.numerics)
    for record in manifest.objects:
        if "file" not in record:
            options = {name: value for name, value in record["options"].items() if value not in _LEFT_OUT}
            prepared = _listed(options)
            yield record["name"], record["type"] + (f", prepared with {prepared}" if prepared else "")
    yield "registered", ", ".join(manifest.registered)
    for number, lines in enumerate(manifest.loaders, 1):
        yield f"loader {number}", ", ".join(lines)
    yield "others", ", ".join(other_names) if is_whole and directory.absolute().parent.name == "checkpoints" else ""


def _listed(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _model_cells(model: ModelInfo) -> tuple[str, ...]:
    numbers = [NOTHING if number is None else f"{number:,}" for number in (model.num_parameters, model.num_in_buffers)]
    return (model.name, model.type, *numbers, ", ".join(model.dtypes) or NOTHING, model.file)


def _tensor_cells(tensors: dict[str, list[TensorInfo]]) -> list[tuple[str, ...]]:
    return [(file, info.name, info.dtype, str(list(info.shape))) for file, infos in tensors.items() for info in infos]


def _num(tensors: list[TensorInfo] | None) -> str:
    return NOTHING if tensors is None else str(len(tensors))
