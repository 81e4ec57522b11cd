"""The number of CUDA GPUs that workers could use, without importing torch or initializing CUDA."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


def num_gpus_here() -> int:
    """The number of GPUs that processes started by this one would see."""
    return num_gpus(os.environ)


def num_gpus(environ: Mapping[str, str]) -> int:
    """The number of GPUs that CUDA_VISIBLE_DEVICES leaves visible; 0 if the installed torch was
    built without CUDA."""
    return num_visible(num_present(), environ.get("CUDA_VISIBLE_DEVICES")) if torch_has_cuda() else 0


def torch_has_cuda() -> bool:
    """Whether the installed torch was built with CUDA, according to its version file."""
    return cuda_version() is not None


def cuda_version() -> str | None:
    """The version of CUDA that the installed torch was built for; None: for none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py")
    try:
        match = re.search(r"^cuda\b[^=]*= *['\"]([^'\"]*)", version.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


def num_present(dev: Path = Path("/dev")) -> int:
    """The number of GPUs of this machine (or container), hidden or not."""
    nodes = [node for node in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name)]
    if nodes:
        return len(nodes)
    program = shutil.which("nvidia-smi")  # where there are no device files: WSL
    if program is None:
        return 0
    try:
        listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.splitlines())


def num_visible(present: int, visible: str | None) -> int:
    """How many GPUs CUDA_VISIBLE_DEVICES leaves visible; None: it is not set."""
    if visible is None:
        return present
    # Several MIG slices may share one GPU, but a process sees only one of them.
    return len(valid_entries(present, visible)) if present else 0


def valid_entries(present: int, visible: str) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES that CUDA uses: the first invalid one ends the list."""

    def is_valid(name: str) -> bool:
        return (name.isdecimal() and int(name) < present) or name.startswith(("GPU-", "MIG-"))

    return list(itertools.takewhile(is_valid, map(str.strip, visible.split(","))))
