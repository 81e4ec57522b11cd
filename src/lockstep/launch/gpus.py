"""The number of CUDA GPUs that workers could use, without importing torch or initializing CUDA.

ROCm's GPUs are CUDA's to PyTorch.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

HIDING = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Variables that hide GPUs, by what torch was built for. Of AMD's: the first hides them from all of ROCm; of what that leaves,
the first of the others that is set."""


def num_gpus_here() -> int:
    """The number of GPUs that processes started by this one would see."""
    return num_gpus(os.environ)


def num_gpus(environ: Mapping[str, str]) -> int:
    """The number of GPUs that CUDA_VISIBLE_DEVICES (with ROCm also ROCR_ and HIP_VISIBLE_DEVICES) leaves visible; 0 if the
    installed torch was built without CUDA and ROCm."""
    kind, _ = torch_build()
    if kind is None:
        return 0
    return num_visible_to(kind, num_present_to_rocm() if kind == "hip" else num_present(), environ)


def torch_has_cuda() -> bool:
    """Whether the installed torch was built with CUDA or ROCm, according to its version file."""
    return torch_build()[0] is not None


def torch_build() -> tuple[str | None, str]:
    """What the installed torch was built for: see ``built_for``."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, ""
    version = Path(spec.origin).with_name("version.py")
    try:
        return built_for(version.read_text(encoding="utf-8"))
    except OSError:
        return None, ""


def built_for(text: str) -> tuple[str | None, str]:
    """What a torch with this text in its version file was built for: ``cuda``, or ``hip`` for ROCm, and the version of that;
    None and empty: neither."""
    match = re.search(r"^(cuda|hip)\b[^=]*= *['\"]([^'\"]*)", text, re.MULTILINE)
    return (None, "") if match is None else (match[1], match[2])


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


def num_present_to_rocm(nodes: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> int:
    """The number of AMD's GPUs of this machine (or container), hidden or not."""
    return sum(map(_is_gpu, nodes.glob("*")))


def _is_gpu(node: Path) -> bool:
    try:
        return (node / "gpu_id").read_text().strip() not in ("", "0")  # a processor's is 0
    except OSError:  # a GPU that a container does not have
        return False


def num_visible_to(kind: str | None, present: int, environ: Mapping[str, str]) -> int:
    """How many GPUs the variables leave visible to a torch that was built for ``kind``."""
    if kind != "hip":
        return num_visible(present, environ.get("CUDA_VISIBLE_DEVICES"))
    of_rocm, *of_pytorch = HIDING[kind]
    left = num_visible(present, environ.get(of_rocm))
    return num_visible(left, next((environ[name] for name in of_pytorch if name in environ), None))


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
