"""The hardware and software of this machine, and what lockstep lacks on it. As a command, it prints
them as JSON.

It runs in a separate process, since a driver can hang, and a process that uses the driver occupies
memory of the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from gpu.stage import ROOT

SHOWN = ("CUDA_", "NVIDIA_", "NCCL_", "TORCH_", "PYTORCH_", "CUBLAS_", "OMP_", "LOCKSTEP_")
"""How environment variables begin that a report has."""
HELPFUL = ("triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "pytest", "pytest-timeout", "hypothesis", "scikit-learn")


def requirements() -> dict[str, str]:
    """What lockstep needs at run time: by distribution, the least version."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    return dict(requirement.split(">=") for requirement in needed)


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing() -> list[str]:
    """The requirements that are not met, as pip takes them."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", text)[:3]]

    found = {name: version(name) for name in requirements()}
    return [
        f"{name}>={least}"
        for name, least in requirements().items()
        if (here := found[name]) is None or numbers(here) < numbers(least)
    ]


def said_by(*command: str) -> str:
    """What a command prints, or why it does not."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not there"
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)
        return (done.stdout if done.returncode == 0 else done.stderr).strip()
    return f"{command[0]} hung for 30 s"


def find_torch() -> dict[str, Any]:
    """PyTorch's own view of itself and of the devices."""
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if kind else 0
    devices = []
    if kind is not None and kind.type == "cuda":
        for index in range(count):
            about = torch.cuda.get_device_properties(index)
            memory = f"{about.total_memory / 2**30:.0f} GiB"
            devices.append(f"{about.name}, {memory}, capability {about.major}.{about.minor}")
    has_cuda = torch.version.cuda is not None
    nccl: Any = torch.cuda.nccl
    cudnn: Any = torch.backends.cudnn
    return {
        "version": torch.__version__,
        "built for CUDA": torch.version.cuda,
        "cuDNN": cudnn.version() if has_cuda else None,
        "NCCL": ".".join(map(str, nccl.version())) if has_cuda and torch.distributed.is_nccl_available() else None,
        "kind": kind.type if kind else None,
        "num_devices": count,
        "devices": devices,
    }


def find() -> dict[str, Any]:
    """The whole of it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "system": platform.platform(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{memory:.0f} GiB",
        "shared memory": f"{shutil.disk_usage('/dev/shm').total / 2**30:.1f} GiB",
        "driver": said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_mode", "--format=csv"),
        "compiler": shutil.which("g++") or shutil.which("gcc") or "none",
        "commit": said_by("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "requirements": {name: version(name) for name in requirements()},
        "missing": missing(),
        "others": {name: version(name) for name in HELPFUL},
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SHOWN)},
        "torch": find_torch() if version("torch") else None,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--found", type=Path, required=True)
    parser.parse_args().found.write_text(json.dumps(find()), encoding="utf-8")
