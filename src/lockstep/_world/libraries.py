"""The versions of what computes on an NVIDIA GPU. They can change the last bits of a result."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import torch

_DRIVER = Path("/proc/driver/nvidia/version")
_PARTS = (0, 1, 2)  # libraryPropertyType of library_types.h: major, minor, patch


def library_versions(device: torch.device) -> dict[str, str | None]:
    """Returns the versions of the driver and of the libraries for a device; None: not known, or the
    device is of another kind."""
    is_cuda = device.type == "cuda"
    return {
        "driver": driver_version() if is_cuda else None,
        "cuda": torch.version.cuda if is_cuda else None,
        "cudnn": _cudnn_version() if is_cuda else None,
        "cublas": cublas_version(torch.version.cuda or "") if is_cuda else None,
        "nccl": _nccl_version() if is_cuda else None,
    }


def driver_version(file: Path = _DRIVER) -> str | None:
    """Returns the version of NVIDIA's driver. (Asking ``nvidia-smi`` would take a second on a
    machine with many GPUs.)"""
    try:
        found = re.search(r"Module\D*(?:x86_64|aarch64)?\s+(\d+\.[\d.]*\d)", file.read_text())
    except OSError:  # as in WSL
        return None
    return found[1] if found else None


def cublas_version(cuda: str) -> str | None:
    """Returns the version of cuBLAS, by its own function: PyTorch has none.

    Args:
        cuda: the version of CUDA that PyTorch was built for: cuBLAS has the same major version.
    """
    number = ctypes.c_int()
    parts = []
    try:
        # PyTorch has loaded it, and so the linker returns the same one.
        library = ctypes.CDLL(f"libcublas.so.{cuda.partition('.')[0]}")
        for part in _PARTS:
            if library.cublasGetProperty(part, ctypes.byref(number)) != 0:
                return None
            parts.append(str(number.value))
    except (OSError, AttributeError):  # a PyTorch for ROCm, or one that contains cuBLAS
        return None
    return ".".join(parts)


def _cudnn_version() -> str | None:
    number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return None if number is None else str(number)


def _nccl_version() -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except AttributeError:  # PyTorch was built without it
        return None
