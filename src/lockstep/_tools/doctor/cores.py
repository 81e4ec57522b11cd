"""The check of cores and threads."""

from __future__ import annotations

from typing import Any

from lockstep._tools.doctor.finding import Finding, Situation, ok, warn
from lockstep._world.environment import threads_of_user
from lockstep._world.machine.cores import num_cores, threads_for
from lockstep._world.machine.sizes import counted


def _threads(situation: Situation) -> int:
    """The number of threads of each process, as ``join`` chooses it."""
    asked = situation.config.threads or threads_of_user(situation.environ, situation.world)
    shards = situation.config.shards or situation.world_size
    return asked or threads_for(shards, situation.world.num_cores)


def look_at_threads(situation: Situation) -> dict[str, Any]:
    """The number of cores, and of the processes and threads to run on them."""
    return {
        "cores": num_cores(),
        "num_processes": situation.num_processes,
        "threads": _threads(situation),
    }


def judge_threads(*, cores: int, num_processes: int, threads: int) -> Finding:
    """Whether there is a core for each thread."""
    found = f"{counted(num_processes, 'process', 'processes')} x {counted(threads, 'thread')} on {counted(cores, 'core')}"
    if num_processes > cores:
        return warn(
            f"{found}: processes share cores, so steps will be many times slower",
            f"use --nproc-per-node {cores} or fewer; if the machine has more cores, request them for the container or job",
            code="cores-below-processes",
        )
    if num_processes * threads > cores:
        return warn(
            f"{found}: threads wait for each other", f"use --threads {cores // num_processes}", code="cores-below-threads"
        )
    return ok(found)
