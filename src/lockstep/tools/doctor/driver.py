"""The check of GPUs and their driver."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from lockstep.launch import gpus
from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn

_QUERY = ("index", "name", "driver_version", "memory.total", "memory.used")
_NVIDIA_SMI_S = 4.0
_DRIVERS = {"11": (450, 80), "12": (525, 60), "13": (580, 0)}
"""The oldest driver for each major version of CUDA (release notes, table "minor version compatibility")."""
_TAKEN = 0.1
"""If more than this share of a GPU's memory is taken, other processes use it."""


def numbers(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` as (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


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
) -> Finding:
    """Whether the driver answers, is new enough for PyTorch's CUDA, and the GPUs are free.

    Args:
        rows: see ``_QUERY``.
        version: see ``gpus.cuda_version``.
    """
    if error:
        return fail(
            f"nvidia-smi: {error}", "the driver does not answer: reload it, or restart the machine (dmesg tells why)"
        )
    if not present:
        none = "no NVIDIA GPU"
        return (
            fail(f"{none}, and one was asked for", "leave out --device cuda and --backend nccl") if wants_gpus else ok(none)
        )
    if version is None:
        return (fail if wants_gpus else warn)(
            f"{present} GPU(s), and the installed torch is built without CUDA: training runs on the CPU",
            "install a torch with CUDA (pytorch.org/get-started), or ask for --device cpu",
        )
    if not visible:
        hidden = f"{present} GPU(s), none of them in CUDA_VISIBLE_DEVICES"
        return (fail if wants_gpus else warn)(hidden, "unset CUDA_VISIBLE_DEVICES, or name GPUs in it")
    driver = rows[0][2] if rows else ""
    least = _DRIVERS.get(version.partition(".")[0])
    if driver and least and numbers(driver) < least:
        return fail(
            f"driver {driver} is too old for torch's CUDA {version}",
            f"install driver {'.'.join(map(str, least))} or later, or a torch for an older CUDA",
        )
    if num_processes > visible:
        return warn(
            f"{num_processes} processes for {visible} GPU(s)", f"--nproc-per-node {visible}: processes would share GPUs"
        )
    known = [row for row in rows if row[3].isdigit() and row[4].isdigit()]  # else [N/A]: some share the machine's memory
    taken = [f"GPU {index}: {used} of {total} MiB" for index, _, _, total, used in known if int(used) > _TAKEN * int(total)]
    if taken:
        return warn(f"others use memory of {', '.join(taken)}", "see nvidia-smi for whose processes these are")
    if len({row[1] for row in rows}) > 1:
        return warn(
            f"GPUs of different kinds: {', '.join(row[1] for row in rows)}",
            "every step waits for the slowest: choose equal ones by CUDA_VISIBLE_DEVICES",
        )
    names = f" ({rows[0][1]}, driver {driver})" if rows else ""
    return ok(f"{visible} of {present} GPU(s) visible{names}, torch for CUDA {version}")
