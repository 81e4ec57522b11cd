"""Software on which a run's answer may depend: versions, and PyTorch's numeric settings."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

import torch

from lockstep.world import devices


@functools.cache  # reading it takes 3 ms
def version() -> str:
    """The installed version of lockstep."""
    try:
        return metadata.version("torch-lockstep")
    except metadata.PackageNotFoundError:  # run from a checkout without installation
        return "unknown"


def numerics() -> dict[str, Any]:
    """What can change the last bits of an answer: PyTorch's global settings, and a GPU's product and libraries."""
    # Those of the older interface (``allow_tf32``) show here too. Its own getters raise once a script has used this one.
    backends = torch.backends
    products = {
        "cuda.matmul": backends.cuda.matmul,
        "cudnn.conv": backends.cudnn.conv,  # type: ignore[attr-defined]
        "cudnn.rnn": backends.cudnn.rnn,
        "mkldnn.matmul": backends.mkldnn.matmul,  # type: ignore[attr-defined]
        "mkldnn.conv": backends.mkldnn.conv,  # type: ignore[attr-defined]
        "mkldnn.rnn": backends.mkldnn.rnn,  # type: ignore[attr-defined]
    }
    formats = {name: product.fp32_precision for name, product in products.items()}
    return {
        **{f"{name}.fp32_precision": "ieee" if value == "none" else value for name, value in formats.items()},
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "default_dtype": str(torch.get_default_dtype()),
        **_gpu(),
    }


def _gpu() -> dict[str, Any]:
    if devices.in_use() is None:
        return {}
    device = torch.device(devices.accelerator(), torch.accelerator.current_device_index())
    return {"gpu": devices.product_of(device), "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
