"""Repeatable kernels of a GPU, whose results are bit-identical each time: PyTorch's setting. (A
CPU's kernels do so in any case.)"""

from __future__ import annotations

import os
from typing import ClassVar

import torch
import torch.utils.deterministic

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._world.devices import in_use

NOTICE = (
    "deterministic kernels are on, so that runs are repeatable; operations without one raise "
    "an error. To turn them off: --allow numerics, or --strategy ddp"
)


SET_TOO_LATE = (
    "this process used the device before lockstep.join(), without CUBLAS_WORKSPACE_CONFIG in its environment. If it has "
    "multiplied matrices, PyTorch may have noted that the variable is not set: then the next product raises an error with its "
    "name. In that case, move what uses the device below join(), start the script by lockstep run, or set "
    "CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python starts"
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


_STRICT = 2
"""PyTorch's number for ``use_deterministic_algorithms(True)`` without ``warn_only``."""
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_DEFAULT = ":4096:8"


def numeric_variables() -> dict[str, str]:
    """The environment variables by which NVIDIA's libraries choose algorithms that give other
    bits."""
    return {
        # Deterministic kernels set it, and so does the launcher. So an absent value means this one.
        _CUBLAS: os.environ.get(_CUBLAS, _CUBLAS_DEFAULT),
        **{name: os.environ.get(name, "") for name in ("CUBLASLT_WORKSPACE_SIZE", "NVIDIA_TF32_OVERRIDE")},
    }


def may_set_cublas_too_late() -> bool:
    """Whether cuBLAS's variable is absent while this process already uses a device. Versions of
    PyTorch read it at their first product alone, and then refuse all later ones."""
    return _CUBLAS not in os.environ and in_use() is not None


class DeterministicKernels:
    """``torch.use_deterministic_algorithms(True)``, from creation until ``put_back``. Local."""

    were_off: ClassVar[bool] = False
    """Whether it was lockstep, and not the script, that set it in this process: for the words of
    PyTorch's error, which outlives the run."""

    def __init__(self) -> None:
        self._mode = torch.get_deterministic_debug_mode()
        DeterministicKernels.were_off = self._mode != _STRICT
        self._fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        self._sets_cublas = _CUBLAS not in os.environ
        os.environ.setdefault(_CUBLAS, _CUBLAS_DEFAULT)
        # A script that has asked for the mode itself may want its memory filled, too. Otherwise it
        # is not, since filling costs a kernel for each new tensor.
        if self._mode == 0:
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True)

    def put_back(self) -> None:
        """Restores what was set before."""
        # And not `set_deterministic_debug_mode`, which would leave on what the call above has also
        # set: the deterministic mode of the compiler, in which later code compiles to slower code.
        torch.use_deterministic_algorithms(self._mode > 0, warn_only=self._mode == 1)
        torch.utils.deterministic.fill_uninitialized_memory = self._fills  # type: ignore[attr-defined]
        if self._sets_cublas:
            os.environ.pop(_CUBLAS, None)
