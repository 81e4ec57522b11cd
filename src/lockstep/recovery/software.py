"""What a run's answer may depend on besides its own state: versions, and PyTorch's switches."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch


def version() -> str:
    """Of lockstep."""
    try:
        return metadata.version("torch-lockstep")
    except metadata.PackageNotFoundError:  # run from a checkout that was not installed
        return "unknown"


def numerics() -> dict[str, Any]:
    """PyTorch's own switches that can change the last bits of an answer."""
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "default_dtype": str(torch.get_default_dtype()),
    }
