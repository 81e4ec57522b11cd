"""What a checkpoint holds, from its manifest and the headers of its files: without torch, and without reading the tensors."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from lockstep.checkpoint.manifest import Manifest
from lockstep.checkpoint.store import find_checkpoint
from lockstep.errors import CheckpointError

_WIDTHS = {"F": "float", "I": "int", "U": "uint", "BF": "bfloat", "C": "complex"}
_TRIES = 5
_NAMES = {"BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


class TensorInfo(NamedTuple):
    """One tensor."""

    name: str
    dtype: str
    """As PyTorch calls it."""
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


class ModelInfo(NamedTuple):
    """One of the prepared models."""

    name: str
    type: str
    file: str
    num_parameters: int | None
    """None: its file cannot be read."""
    num_in_buffers: int | None
    """Numbers that are weights and no parameters: running averages, say."""
    dtypes: tuple[str, ...]
    """Of its parameters."""


def read_header(file: Path) -> list[TensorInfo]:
    """The tensors of a file by name, ``2.weight`` before ``10.weight``.

    Raises:
        CheckpointError: it is missing, or damaged.
    """
    found = []
    try:
        with safe_open(file, framework="numpy") as opened:  # PyTorch's would import torch
            for name in opened.keys():  # noqa: SIM118 - no mapping
                part = opened.get_slice(name)
                found.append(TensorInfo(name, _dtype(part.get_dtype()), tuple(part.get_shape())))
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read as safetensors: {error}") from error
    return sorted(found, key=lambda info: [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", info.name)])


def describe_models(manifest: Manifest, tensors: dict[str, list[TensorInfo]]) -> list[ModelInfo]:
    """The models of a checkpoint.

    Args:
        manifest: of the checkpoint.
        tensors: those of each file that could be read.
    """
    return [_describe(record, tensors.get(record["file"])) for record in manifest.objects if "file" in record]


def _describe(record: dict[str, Any], tensors: list[TensorInfo] | None) -> ModelInfo:
    # The manifest has a line for each parameter, "0.weight of shape (32, 16), float32". What else there is are buffers.
    parameters = {line.rpartition(" of shape ")[0] for line in record["lines"]}
    own = [info for info in tensors or () if info.name in parameters]
    counts = [sum(info.num_values for info in group) for group in (own, [i for i in tensors or () if i not in own])]
    known = tensors is not None
    return ModelInfo(
        name=record["name"],
        type=record["type"],
        file=record["file"],
        num_parameters=counts[0] if known else None,
        num_in_buffers=counts[1] if known else None,
        dtypes=tuple(sorted({info.dtype for info in own})),
    )


def _dtype(name: str) -> str:
    kind = name.rstrip("0123456789")
    return _NAMES.get(name) or (f"{_WIDTHS[kind]}{name.removeprefix(kind)}" if kind in _WIDTHS else name.lower())


def read_manifest(path: Path) -> tuple[Path, Manifest]:
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
