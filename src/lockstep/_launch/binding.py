"""Binding of processes to the CPUs near their GPUs: PyTorch's ``torch.numa``, as ``torchrun
--numa-binding`` applies it."""

from __future__ import annotations

import os
import shutil

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError, unknown_name
from lockstep._base.stopping import say
from lockstep._launch import gpus

BINDINGS = ("none", "node", "socket", "exclusive", "core-complex")
"""``torch.numa.binding.AffinityMode`` defines each kind."""


def check_binding(kind: str, config: RunConfig) -> None:
    """Checks that processes of this machine can be bound, before any is started.

    Raises:
        ConfigError: the kind is unknown, or there is no GPU to be near to, or PyTorch would not
            bind them here.
    """
    if kind not in BINDINGS:
        raise unknown_name("binding", kind, BINDINGS)
    if kind == "none":
        return
    if config.device == "cpu" or gpus.num_gpus_here() == 0:
        raise ConfigError(
            f"--bind {kind} binds each process to the CPUs near its GPU, but this machine has no GPU. "
            "Remove it (taskset and numactl bind the whole run)",
            code="bind-without-gpu",
        )
    if shutil.which("numactl") is None:
        raise ConfigError(
            f"--bind {kind} needs the program numactl, which is not installed. Install it, or remove --bind",
            code="bind-without-numactl",
        )


def bind_to_gpu(kind: str, gpu: int, rank: int) -> None:
    """Binds this process, and what it starts from now on, to the CPUs near a GPU. Initializes CUDA.
    Called in the worker."""
    # The names are private: public are the options alone, for torchelastic.
    from torch.numa.binding import AffinityMode, NumaOptions, _maybe_apply_numa_binding_to_current_process

    _maybe_apply_numa_binding_to_current_process(gpu_index=gpu, numa_options=NumaOptions(AffinityMode(kind)))
    say(f"rank {rank} is bound to {len(os.sched_getaffinity(0))} CPUs near GPU {gpu} ({kind})")
