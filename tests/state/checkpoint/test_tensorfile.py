"""What lockstep writes as safetensors files is what the library itself would have written."""

from __future__ import annotations

import hashlib
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
    assert digest == hashlib.sha256((tmp_path / "ours").read_bytes()).hexdigest()


def test_a_dtype_that_the_format_does_not_have_is_named_with_its_tensor(tmp_path: Path) -> None:
    with raises(CheckpointError, "dtype-unsupported"):
        write_tensors(tmp_path / "ours", {"moments": torch.ones(2, dtype=torch.complex128)})
