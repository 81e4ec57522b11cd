"""Repeatable kernels of a GPU, whose results are bit-identical each time: PyTorch's setting. (A
CPU's kernels do so in any case.)"""

from __future__ import annotations

import os

import torch
import torch.utils.deterministic

from lockstep._base.config import STRATEGIES, RunConfig

NOTICE = (
    "deterministic kernels are on, so that runs are repeatable; operations without one raise "
    "an error. To turn them off: --allow numerics, or --strategy ddp"
)


def needs_deterministic_kernels(config: RunConfig, device: torch.device) -> bool:
    """Whether a run's answer would depend on chance without them."""
    return device.type != "cpu" and STRATEGIES[config.strategy].repeats and "numerics" not in config.allow


def kernels_repeat() -> bool:
    """Whether PyTorch's settings make a GPU's kernels repeatable."""
    # With ``warn_only`` cuDNN's attention takes its other kernel. A benchmark chooses among
    # deterministic kernels by their speed, which is not always the same.
    is_strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    return is_strict and not torch.backends.cudnn.benchmark


_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_DEFAULT = ":4096:8"


def numeric_variables() -> dict[str, str]:
    """The environment variables by which NVIDIA's libraries choose algorithms that give other
    bits."""
    return {
        # Deterministic kernels set it, and so does the launcher. So an absent value means this one.
        _CUBLAS: os.environ.get(_CUBLAS, _CUBLAS_DEFAULT),
        "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", ""),
    }


class DeterministicKernels:
    """``torch.use_deterministic_algorithms(True)``, from creation until ``put_back``. Local."""

    def __init__(self) -> None:
        self._mode = torch.get_deterministic_debug_mode()
        self._fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        self._sets_cublas = _CUBLAS not in os.environ
        os.environ.setdefault(_CUBLAS, _CUBLAS_DEFAULT)  # PyTorch reads it at every product
        # A script that has asked for the mode itself may want its memory filled, too. Otherwise it
        # is not, since filling costs a kernel for each new tensor.
        if self._mode == 0:
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True)

    def put_back(self) -> None:
        """Restores what was set before."""
        torch.set_deterministic_debug_mode(self._mode)
        torch.utils.deterministic.fill_uninitialized_memory = self._fills  # type: ignore[attr-defined]
        if self._sets_cublas:
            os.environ.pop(_CUBLAS, None)
