"""Repeatable kernels of a GPU, whose results are bit-identical each time: PyTorch's setting. (A
CPU's kernels do so in any case.)"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.utils.deterministic

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._base.errors import ConfigError
from lockstep._world.allowed_operations import AllowedOperations
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


def notice(allowed: Sequence[str]) -> str:
    """The line for the user about deterministic kernels. ``allowed``: the operations that may run
    without."""
    if not allowed:
        return NOTICE
    return (
        f"deterministic kernels are on, except in {', '.join(allowed)} (--nondeterministic): results are not bit-identical "
        "where these are used, and all that follows from them"
    )


def needs_deterministic_kernels(config: RunConfig, device: torch.device) -> bool:
    """Whether a run's answer would depend on chance without them."""
    return device.type != "cpu" and STRATEGIES[config.strategy].repeats and "numerics" not in config.allow


def check_allowed_operations(config: RunConfig, devices: Sequence[torch.device]) -> None:
    """Checks that the operations of ``config.nondeterministic`` can be allowed on these devices of
    this process.

    Raises:
        ConfigError: they cannot.
    """
    if not config.nondeterministic or not needs_deterministic_kernels(config, devices[0]):
        return
    setting = f"nondeterministic={','.join(config.nondeterministic)}"
    if len(devices) > 1:
        raise ConfigError(
            f"{setting} needs one device per process, and this process has {len(devices)}: while one device runs such an "
            "operation, other operations on another device would not be deterministic. Use one device, or --allow numerics.",
            code="nondeterministic-several-devices",
        )
    if devices[0].type != "cuda":
        raise ConfigError(
            f"{setting} is available on CUDA devices only, and this run is on {devices[0].type!r}. Remove it, or use "
            "--allow numerics.",
            code="nondeterministic-device",
        )


def kernels_repeat() -> bool:
    """Whether PyTorch's settings make a GPU's kernels repeatable."""
    # With ``warn_only`` cuDNN's attention takes its other kernel. A benchmark chooses among
    # deterministic kernels by their speed, which is not always the same.
    is_strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    return is_strict and not torch.backends.cudnn.benchmark and not AllowedOperations.num_open


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
    """``torch.use_deterministic_algorithms(True)``, from creation until ``put_back``. Local.

    Args:
        allowed: the names of operations that may run without.
    """

    were_off: ClassVar[bool] = False
    """Whether it was lockstep, and not the script, that set it in this process: for the words of
    PyTorch's error, which outlives the run."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = AllowedOperations(allowed)
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
        self._allowed.put_back()
        # And not `set_deterministic_debug_mode`, which would leave on what the call above has also
        # set: the deterministic mode of the compiler, in which later code compiles to slower code.
        torch.use_deterministic_algorithms(self._mode > 0, warn_only=self._mode == 1)
        torch.utils.deterministic.fill_uninitialized_memory = self._fills  # type: ignore[attr-defined]
        if self._sets_cublas:
            os.environ.pop(_CUBLAS, None)
