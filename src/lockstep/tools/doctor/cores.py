"""Checks of cores and threads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from lockstep.tools.doctor.finding import Finding, Situation, ok, warn
from lockstep.world.environment import OMP, threads_asked
from lockstep.world.machine.cores import num_cores

_OF_BLAS = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_BINDS = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")
_HARMLESS = re.compile(r"false|none|disabled", re.IGNORECASE)


def _threads(situation: Situation) -> int:
    """The number of threads of each process, as ``join`` chooses it."""
    asked = situation.config.threads or threads_asked(situation.environ)
    return asked or max(1, num_cores() // (situation.config.shards or situation.num_processes))


def look_at_threads(situation: Situation) -> dict[str, Any]:
    """The number of cores, and of the processes and threads to run on them."""
    return {
        "cores": num_cores(),
        "num_processes": situation.num_processes,
        "threads": _threads(situation),
        "workers": situation.config.workers or 0,
        "load": os.getloadavg()[0],
    }


def judge_threads(*, cores: int, num_processes: int, threads: int, workers: int, load: float) -> Finding:
    """Whether there is a core for each thread."""
    found = f"{num_processes} process(es) x {threads} thread(s) on {cores} core(s)"
    if num_processes > cores:
        return warn(
            f"{found}: processes wait for each other's turn, and a step takes many times as long",
            f"--nproc-per-node {cores} or fewer; if the machine has more cores, the container or job must be given them",
        )
    if num_processes * threads > cores:
        return warn(f"{found}: threads wait for each other", f"--threads {cores // num_processes}")
    if num_processes * (threads + workers) > 2 * cores:
        return warn(
            f"{found}, and {workers} loader workers each", f"--workers {max(0, 2 * cores // num_processes - threads)}"
        )
    if load > 2 * cores:
        return warn(f"{found}; others have kept {load:.1f} busy in the last minute", "top shows which")
    return ok(found)


def look_at_settings(situation: Situation) -> dict[str, Any]:
    """Environment variables of OpenMP and BLAS."""
    names = (OMP, *_OF_BLAS, *_BINDS, "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    return {
        "variables": {name: situation.environ[name] for name in names if name in situation.environ},
        "num_processes": situation.num_processes,
    }


def judge_settings(*, variables: Mapping[str, str], num_processes: int) -> Finding:
    """Whether they contradict each other, or suit only a single process."""
    shown = ", ".join(f"{name}={value}" for name, value in variables.items())
    invalid = [name for name in (OMP, *_OF_BLAS) if name in variables and threads_asked(variables, name) is None]
    if invalid:
        return warn(f"{invalid[0]}={variables[invalid[0]]} is no number of threads, and is ignored", f"unset {invalid[0]}")
    counts = {name: threads_asked(variables, name) for name in (OMP, *_OF_BLAS) if name in variables}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{name}={variables[name]}" for name in counts)
        return warn(f"{numbers}: they contradict each other", f"set {OMP} alone, or --threads: it applies to all of them")
    binding = [name for name in _BINDS if name in variables and not _HARMLESS.search(variables[name])]
    if binding and num_processes > 1:
        return warn(
            f"{binding[0]}={variables[binding[0]]} binds every one of {num_processes} processes to the same cores",
            f"unset {binding[0]}",
        )
    spinning = {"OMP_WAIT_POLICY": "active", "KMP_BLOCKTIME": "infinite"}
    spins = [f"{name}={variables[name]}" for name, value in spinning.items() if variables.get(name, "").lower() == value]
    if spins and num_processes > 1:
        return warn(
            f"{', '.join(spins)}: threads that wait take the cores of others", "unset OMP_WAIT_POLICY and KMP_BLOCKTIME"
        )
    return ok(shown or "none is set: lockstep divides the cores")
