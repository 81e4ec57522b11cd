"""Software on which a run's results may depend: versions, and PyTorch's numeric settings."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

import torch

from lockstep._world import devices
from lockstep._world.kernels import numeric_variables


@functools.cache  # reading it takes 3 ms
def version() -> str:
    """Returns the installed version of lockstep."""
    try:
        return metadata.version("torch-lockstep")
    except metadata.PackageNotFoundError:  # run from a checkout without installation
        return "unknown"


def numerics() -> dict[str, Any]:
    """Returns what can change the last bits of a result: PyTorch's global settings, and a GPU's
    product and libraries."""
    # Settings of the older interface (``allow_tf32``) are visible here, too. Its own getters raise
    # once a script has used the new interface.
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
        **_kernels(),
        **_gpu(),
    }


def _kernels() -> dict[str, Any]:
    """Returns the settings by which PyTorch chooses kernels and their rounding, under the names
    that scripts set."""
    backends = torch.backends
    cuda: Any = backends.cuda
    reductions = (
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction_split_k",
        "allow_fp16_reduced_precision_reduction_split_k",
        "allow_fp16_accumulation",
    )
    return {
        **{f"cuda.matmul.{name}": getattr(cuda.matmul, name, None) for name in reductions},
        "cuda.enable_flash_sdp": cuda.flash_sdp_enabled(),
        "cuda.enable_mem_efficient_sdp": cuda.mem_efficient_sdp_enabled(),
        "cuda.enable_math_sdp": cuda.math_sdp_enabled(),
        "cuda.enable_cudnn_sdp": cuda.cudnn_sdp_enabled(),
        "cuda.allow_fp16_bf16_reduction_math_sdp": cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "cuda.preferred_blas_library": str(cuda.preferred_blas_library()),
        "cuda.preferred_linalg_library": str(cuda.preferred_linalg_library()),
        "cudnn.enabled": backends.cudnn.enabled,
        "cudnn.depthwise_kernel": getattr(backends.cudnn, "depthwise_kernel", None),
        "mkldnn.enabled": backends.mkldnn.enabled,
        "mkldnn.deterministic": getattr(backends.mkldnn, "deterministic", None),
        "opt_einsum.enabled": backends.opt_einsum.enabled,
        "opt_einsum.strategy": backends.opt_einsum.strategy,
        "set_flush_denormal": _flushes_denormals(),
    }


def _flushes_denormals() -> bool:
    """Returns whether this thread's CPU treats the smallest numbers as 0. (PyTorch has a setter,
    but no getter.)"""
    smallest = torch.tensor([torch.finfo(torch.float64).smallest_normal], dtype=torch.float64, device="cpu")
    return not (smallest / 2).item()


def _gpu() -> dict[str, Any]:
    if devices.in_use() is None:
        return {}
    device = torch.device(devices.accelerator(), torch.accelerator.current_device_index())
    return {
        "gpu": devices.product_of(device),
        # Kernels split their sums by it, and a part of a GPU (MIG, MPS) has fewer.
        "multiprocessors": devices.num_multiprocessors(device),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        **numeric_variables(),
    }
