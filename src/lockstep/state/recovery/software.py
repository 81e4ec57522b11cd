"""Software on which a run's answer may depend: versions, and PyTorch's numeric settings."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

import torch


@functools.cache  # reading it takes 3 ms
def version() -> str:
    """The installed version of lockstep."""
    try:
        return metadata.version("torch-lockstep")
    except metadata.PackageNotFoundError:  # run from a checkout without installation
        return "unknown"


def numerics() -> dict[str, Any]:
    """PyTorch's global settings that can change the last bits of an answer."""
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "default_dtype": str(torch.get_default_dtype()),
    }
