"""What lockstep writes as safetensors files is what the library itself would have written."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
import torch
from codes import raises
from safetensors.torch import load_file, save_file
from torch import Tensor

from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.tensorfile import _NAMES, write_tensors


def some(dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype is torch.bool:
        return torch.randint(2, shape, dtype=torch.uint8).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(256, (*shape, size), dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", _NAMES, ids=str)
def test_a_file_is_the_librarys_byte_for_byte(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {
        "b.weight": some(dtype, 7, 5),
        "a": some(dtype, 3),
        "scalar": some(dtype),
        "none": some(dtype, 0, 4),
        '\N{LATIN SMALL LETTER U WITH DIAERESIS} "quoted" \\': some(dtype, 1),
    }

    write_tensors(tmp_path / "ours", tensors)
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})

    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_tensor_larger_than_a_block_is_whole_with_the_right_checksum(tmp_path: Path) -> None:
    tensors = {"large": torch.rand(1_100_001)}

    _, digest = write_tensors(tmp_path / "ours", tensors)

    assert torch.equal(load_file(tmp_path / "ours")["large"], tensors["large"])
    assert digest == f"{zlib.crc32((tmp_path / 'ours').read_bytes()):08x}"


def test_a_dtype_that_the_format_does_not_have_is_named_with_its_tensor(tmp_path: Path) -> None:
    with raises(CheckpointError, "dtype-unsupported"):
        write_tensors(tmp_path / "ours", {"moments": torch.ones(2, dtype=torch.complex128)})


def test_every_tensor_of_a_mixed_file_is_aligned(tmp_path: Path) -> None:
    tensors = {
        "a": some(torch.bool, 3),
        "b": some(torch.float64, 2),
        "c": some(torch.bfloat16, 3),
        "d": some(torch.float32, 1),
    }

    write_tensors(tmp_path / "ours", tensors)

    content = (tmp_path / "ours").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert all((8 + length + header[name]["data_offsets"][0]) % each.element_size() == 0 for name, each in tensors.items())
    found = load_file(tmp_path / "ours")
    assert all(
        found[name].numpy(force=True).tobytes() == each.numpy().tobytes() for name, each in tensors.items() if name != "c"
    )
