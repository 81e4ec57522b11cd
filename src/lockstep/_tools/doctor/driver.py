"""The check of GPUs and their driver."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from lockstep._base.own_kernels import packages_installed
from lockstep._launch import gpus
from lockstep._tools.doctor.finding import Finding, Situation, fail, ok, warn

_QUERY = ("name", "driver_version")
_NVIDIA_SMI_S = 4.0


def look_at_gpus(situation: Situation) -> dict[str, Any]:
    """What the driver reports about GPUs, without initializing CUDA."""
    present, rows, error = gpus.num_present(), list[list[str]](), ""
    program = shutil.which("nvidia-smi")
    if program is not None:
        command = [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=False)
            error = "" if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]
            rows = [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else []
        except (OSError, subprocess.TimeoutExpired) as raised:
            error = str(raised)
    return {
        "present": present,
        "visible": gpus.num_visible(present, situation.environ.get("CUDA_VISIBLE_DEVICES")),
        "rows": [row for row in rows if len(row) == len(_QUERY)],
        "error": error if present else "",
        "version": gpus.cuda_version(),
        "wants_gpus": situation.config.device == "cuda" or situation.config.backend == "nccl",
        "num_processes": situation.num_processes,
        "packages": packages_installed() if present else [],
    }


def judge_gpus(
    *,
    present: int,
    visible: int,
    rows: Sequence[Sequence[str]],
    error: str,
    version: str | None,
    wants_gpus: bool,
    num_processes: int,
    packages: Sequence[str] = (),
) -> Finding:
    """Whether the driver answers, and PyTorch can use the GPUs.

    Args:
        rows: see ``_QUERY``.
        version: see ``gpus.cuda_version``.
        packages: the installed ones of ``own_kernels``.
    """
    if error:
        return fail(
            f"nvidia-smi: {error}",
            "the driver does not respond: reload it, or restart the machine (see dmesg for the cause)",
            code="driver-failed",
        )
    if not present:
        none = "no NVIDIA GPU"
        return (
            fail(f"{none}, but one is requested", "remove --device cuda and --backend nccl", code="no-gpu")
            if wants_gpus
            else ok(none)
        )
    if version is None:
        return (fail if wants_gpus else warn)(
            f"{present} GPU(s), but the installed torch is built without CUDA: training runs on the CPU",
            "install a torch with CUDA (pytorch.org/get-started), or use --device cpu",
            code="torch-without-cuda",
        )
    if not visible:
        hidden = f"{present} GPU(s), none of them in CUDA_VISIBLE_DEVICES"
        return (fail if wants_gpus else warn)(hidden, "unset CUDA_VISIBLE_DEVICES, or list GPUs in it", code="gpus-hidden")
    if num_processes > visible:
        return warn(
            f"{num_processes} processes share {visible} GPU(s)", f"use --nproc-per-node {visible}", code="gpus-shared"
        )
    names = f" ({rows[0][0]}, driver {rows[0][1]})" if rows else ""
    unseen = f"; PyTorch does not make the kernels of {', '.join(packages)} deterministic" if packages else ""
    return ok(f"{visible} of {present} GPU(s) visible{names}, torch for CUDA {version}{unseen}")
