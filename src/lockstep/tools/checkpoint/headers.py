"""The contents of a checkpoint from its manifest and file headers, without importing torch or reading the tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from safetensors import SafetensorError, safe_open

from lockstep.base.errors import CheckpointError
from lockstep.base.regular import check_regular
from lockstep.state.checkpoint.manifest import Manifest, Object
from lockstep.state.checkpoint.store import find_checkpoint

T = TypeVar("T")

_WIDTHS = {"F": "float", "I": "int", "U": "uint", "BF": "bfloat", "C": "complex"}
_TRIES = 5
_NAMES = {"BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


class TensorInfo(NamedTuple):
    """One tensor."""

    name: str
    dtype: str
    """PyTorch's name of it."""
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class ModelInfo(NamedTuple):
    """One of the prepared models."""

    name: str
    type: str
    file: str
    num_parameters: int | None
    """Elements of all parameters; None: the file cannot be read."""
    num_in_buffers: int | None
    """Elements of all buffers (running averages, say)."""
    dtypes: tuple[str, ...]
    """Those of its parameters."""


def read_header(file: Path) -> list[TensorInfo]:
    """The tensors of a file, sorted by name with ``2.weight`` before ``10.weight``.

    Raises:
        CheckpointError: the file is missing, damaged, or no regular file.
    """
    tensors = []
    try:
        check_regular(file)  # safetensors would wait for a writer to a FIFO, for ever and deaf to signals
        with safe_open(file, framework="numpy") as opened:  # PyTorch's would import torch
            for name in opened.keys():  # noqa: SIM118 - no mapping
                part = opened.get_slice(name)
                tensors.append(TensorInfo(name, _dtype(part.get_dtype()), tuple(part.get_shape())))
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read as safetensors: {error}") from error
    return sorted(tensors, key=lambda info: [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", info.name)])


def describe_models(manifest: Manifest, tensors: dict[str, list[TensorInfo]]) -> list[ModelInfo]:
    """The models of a checkpoint.

    Args:
        manifest: that of the checkpoint.
        tensors: the tensors of each readable file.
    """
    return [_describe(record, tensors.get(record["file"])) for record in manifest.objects if "file" in record]


def _describe(record: Object, tensors: list[TensorInfo] | None) -> ModelInfo:
    # The manifest has a line for each parameter, "0.weight of shape (32, 16), float32". Other tensors are buffers.
    parameters = {line.rpartition(" of shape ")[0] for line in record["lines"]}
    in_parameters = [info for info in tensors or () if info.name in parameters]
    counts = [
        sum(info.num_values for info in group)
        for group in (in_parameters, [i for i in tensors or () if i not in in_parameters])
    ]
    is_readable = tensors is not None
    return ModelInfo(
        name=record["name"],
        type=record["type"],
        file=record["file"],
        num_parameters=counts[0] if is_readable else None,
        num_in_buffers=counts[1] if is_readable else None,
        dtypes=tuple(sorted({info.dtype for info in in_parameters})),
    )


def _dtype(name: str) -> str:
    kind = name.rstrip("0123456789")
    return _NAMES.get(name) or (f"{_WIDTHS[kind]}{name.removeprefix(kind)}" if kind in _WIDTHS else name.lower())


def read_checkpoint(path: Path, read: Callable[[Path, Manifest], T]) -> T:
    """Find the checkpoint for a path, and read from it; again if an active run has replaced or deleted it meanwhile.

    Args:
        path: a checkpoint directory, a run directory, or ``RUN/best``.
        read: is given the checkpoint directory and its manifest.

    Raises:
        CheckpointError: there is none, its manifest cannot be read, or ``read`` has raised it.
    """
    for attempt in range(_TRIES):
        directory, manifest = find_checkpoint(path), None
        try:
            manifest = Manifest.read(directory)
            return read(directory, manifest)
        except CheckpointError:
            if attempt == _TRIES - 1 or not _was_replaced(directory, manifest):
                raise
    raise AssertionError("the last attempt returns or raises")


def _was_replaced(directory: Path, manifest: Manifest | None) -> bool:
    try:
        return Manifest.read(directory) != manifest
    except CheckpointError:
        return not directory.exists()
