"""Writes a safetensors file with as little effect on concurrent training as possible.

The library's ``save_file`` computes no checksum, which would need two more passes over the
tensors. Files are read by the library alone, and
tests compare them with the library's files byte by byte.

The format (https://github.com/huggingface/safetensors)::

    8 bytes     the length of the header, little-endian
    header      JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}, padded
    data        the tensors, without gaps
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.files import Bytes, write_bytes

_ALIGNMENT = 8
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, within: Path | None = None) -> tuple[int, str]:
    """Writes tensors, and flushes them to disk.

    Args:
        tensors: contiguous CPU tensors by name. They must not change in the meantime.
        within: the directory that no symbolic link on the path may leave.

    Returns:
        The number of bytes, and the CRC-32 of the intended content, in hexadecimal digits.

    Raises:
        CheckpointError: the format does not support a dtype.
        OSError: the file could not be written.
    """
    header = _header(tensors)
    return write_bytes(path, _parts(header, tensors), within=within)


def _header(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, object]]:
    header: dict[str, dict[str, object]] = {"__metadata__": {"format": "pt"}}
    end = 0
    # Large elements first: then each tensor begins at a multiple of its element size without gaps,
    # which the format does not allow.
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise CheckpointError(
                f"cannot save {name}: safetensors files do not support dtype {tensor.dtype}", code="dtype-unsupported"
            )
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    return header


def _parts(header: Mapping[str, dict[str, object]], tensors: Mapping[str, Tensor]) -> Iterator[Bytes]:
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)  # the data begins after it, and must be aligned
    yield np.frombuffer(struct.pack("<Q", len(text)) + text, dtype=np.uint8)
    for name in header:
        if name != "__metadata__":
            yield tensors[name].reshape(-1).view(torch.uint8).numpy()
