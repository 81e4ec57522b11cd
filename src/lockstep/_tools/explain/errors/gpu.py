"""Errors of GPUs and of NCCL: operations without a deterministic kernel, full memory, processes
that cannot connect."""

from __future__ import annotations

import re

from lockstep._base.nondeterministic_operations import of_error
from lockstep._tools.explain.errors.processes import ENLARGE_SHM, shared_memory
from lockstep._tools.explain.errors.row import row
from lockstep._tools.explain.errors.scene import Scene

_ENGINE, _KERNELS = "lockstep._joining.engine", "lockstep._world.kernels"
"""The modules of a run, and of its deterministic kernels. Scripts without a run do not import
them."""
_OTHER_PROCESS = re.compile(r"Process (\d+) has ([\d.]+ \w+) memory in use")
_UNALLOCATED = re.compile(r"([\d.]+) ([GM]iB) is reserved by PyTorch but unallocated")
_LAST = re.compile(r"Last error:\s*(\S[^\n]*)")


def _no_kernel(match: re.Match[str], scene: Scene) -> str:
    """Explains an operation that PyTorch refuses, and what to write instead of it."""
    kernel = match["kernel"].strip()
    kernels = scene.modules.get(_KERNELS)
    who = (
        "lockstep, not the script, has"
        if kernels and kernels.DeterministicKernels.were_off
        else "The script or a library has"
    )
    operation = of_error(kernel)
    what = kernel if operation is None else operation.name
    parts = [
        f"{who} turned on deterministic kernels, without which two equal runs differ, and PyTorch has none for {what} on this "
        "device.",
        "Compute it with other operations, or on the CPU: x.cpu(), and .to(x.device) for the result."
        if operation is None
        else f"{operation.advice()[:1].upper()}{operation.advice()[1:]}.",
    ]
    if _ENGINE in scene.modules:
        option = "--allow numerics" if operation is None else f"--nondeterministic {operation.name}"
        parts.append(
            f"If that is not possible: {option} allows it, and results are then not bit-identical. Do not set warn_only=True, "
            "with which more operations are not deterministic. More: docs/deterministic-kernels.md"
        )
    return " ".join(parts)


def _memory_is_full(match: re.Match[str], scene: Scene) -> str:
    """Explains a full GPU: who fills it, and what takes less without other results."""
    others = _OTHER_PROCESS.findall(scene.text)
    parts = []
    if others:
        listed = ", ".join(f"process {pid} has {size}" for pid, size in others)
        parts.append(f"Other processes use this GPU: {listed} (see nvidia-smi).")
    unallocated = _UNALLOCATED.search(scene.text)
    if unallocated is not None and unallocated[2] == "GiB":
        parts.append(
            f"{unallocated[1]} GiB are reserved in pieces that do not fit: set PYTORCH_ALLOC_CONF=expandable_segments:True."
        )
    parts.append("To need less memory with the same results: torch.utils.checkpoint (activations are computed again)")
    if _ENGINE in scene.modules:
        parts[-1] += ", or --strategy fsdp with more processes."
        parts.append(
            "With other, equally good results: more shards (--shards), of which each process has one in memory at a time, or "
            "--precision bf16-mixed."
        )
    else:
        parts[-1] += "."
    return "The memory of the GPU is full. " + " ".join(parts)


_SHARED_GPU = (
    "NCCL needs a GPU for each rank, and two ranks have the same one. (Slices of one GPU, by MIG, count as the same.) Start at "
    "most one process per GPU (--nproc-per-node), give each process another GPU, or pass --backend gloo, with which ranks may "
    "share one."
)


def _nccl_failed(match: re.Match[str], scene: Scene) -> str:
    """Explains an error of NCCL by its last message, which names the system call."""
    last = _LAST.search(scene.text)
    cause = f" NCCL's last message: {last[1].strip().rstrip('.')}." if last is not None else ""
    if "/dev/shm" in scene.text:
        what = "NCCL could not use /dev/shm, through which the processes of a machine communicate."
        return f"{what}{cause} {shared_memory()} {ENLARGE_SHM}."
    if match["kind"] == "unhandled cuda error":
        return (
            f"A call of CUDA in NCCL failed on this rank.{cause} Often the GPU is full, since NCCL needs memory that PyTorch "
            "has not reserved; or an earlier kernel of the script failed (CUDA_LAUNCH_BLOCKING=1 shows where). For details: "
            "NCCL_DEBUG=INFO."
        )
    return (
        f"NCCL could not communicate.{cause} Often it uses a network interface that does not reach the other machines: set "
        "NCCL_SOCKET_IFNAME to one that does. For details: NCCL_DEBUG=INFO; to check the machines: lockstep doctor. If another "
        "rank failed first, this error is only a consequence."
    )


ROWS = (
    row(
        "no deterministic kernel",
        r"(?P<kernel>[^\n]+?) does not have a deterministic implementation, but you set "
        r"'torch\.use_deterministic_algorithms\(True\)'",
        _no_kernel,
    ),
    row("GPU memory is full", r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED", _memory_is_full),
    row("ranks that share a GPU", r"Duplicate GPU detected", _SHARED_GPU),
    row("NCCL", r"NCCL error.*(?P<kind>unhandled system error|unhandled cuda error|remote process exited)", _nccl_failed),
)
