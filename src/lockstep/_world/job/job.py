"""The Slurm job of this process, read from Slurm's environment variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lockstep._base.errors import ConfigError
from lockstep._world.job.hostlist import expand_counts, expand_hosts

T = TypeVar("T")

STEP = "SLURM_STEP_ID"
"""The number of a job step. Set in processes that ``srun`` has started; neither in a batch script
nor in the shell of ``salloc``."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A job step, started by one ``srun``, and this process's place in it."""

    number: str
    rank: int
    num_tasks: int
    local_rank: int
    node_rank: int
    hosts: tuple[str, ...]
    """Host names by node rank."""
    tasks: tuple[int, ...]
    """Number of tasks on each node, by node rank."""
    cpus_per_task: int | None
    """The number of CPUs per task that was requested; None: none was."""

    @property
    def tasks_here(self) -> int:
        """Number of tasks on this node."""
        return self.tasks[self.node_rank]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, and this process's step in it."""

    number: str
    """The job id; each task of an array has its own."""
    restart: int = 0
    """Number of times that it was requeued."""
    array_task: str | None = None
    """Number of the task in a job array; None: not in an array."""
    num_nodes: int = 1
    num_tasks: int = 1
    """Number of requested tasks, which an ``srun`` in the job starts by default."""
    step: Step | None = None
    cpus_here: int | None = None
    """Number of CPUs on this node for the step or, outside of steps, for the job."""
    gpus_here: int | None = None
    """Number of GPUs on this node for the job; None: none were requested."""

    @property
    def name(self) -> str:
        """A name that stays the same when the job is requeued, since the step then has the same
        number."""
        return f"slurm {self.number}.{'batch' if self.step is None else self.step.number}"

    @property
    def part(self) -> str:
        """Distinguishes the same command in the tasks of an array; empty outside of arrays."""
        return "" if self.array_task is None else f"array task {self.array_task}"

    def num_cores(self, affinity: int) -> int | None:
        """Number of cores of this node for all of the step's processes together; None: unknown.

        Args:
            affinity: number of cores in this process's affinity mask.
        """
        step = self.step
        # The mask of this process is of one task, and its siblings have as many cores each.
        if step is not None and step.cpus_per_task is not None:
            return min(step.cpus_per_task, affinity) * step.tasks_here
        if self.cpus_here is None or (step is not None and step.tasks_here > 1):
            return self.cpus_here  # each task may be bound to some of them
        return min(self.cpus_here, affinity)


def read_job(environ: Mapping[str, str]) -> Job | None:
    """The job described by environment variables; None: there is none.

    Raises:
        ConfigError: a variable has a value that Slurm would not set.
    """
    number = environ.get("SLURM_JOB_ID", "")
    if not number:
        return None
    return Job(
        number=number,
        restart=_count(environ, "SLURM_RESTART_COUNT") or 0,
        array_task=environ.get("SLURM_ARRAY_TASK_ID") or None,
        num_nodes=_count(environ, "SLURM_JOB_NUM_NODES") or 1,
        num_tasks=_count(environ, "SLURM_NTASKS") or 1,
        step=_read_step(environ) if environ.get(STEP) else None,
        cpus_here=_count(environ, "SLURM_CPUS_ON_NODE"),
        gpus_here=_count(environ, "SLURM_GPUS_ON_NODE"),
    )


def _read_step(environ: Mapping[str, str]) -> Step | None:
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID")
    rank, num_tasks, local_rank, node_rank = (_count(environ, name) for name in names)
    if rank is None or num_tasks is None or local_rank is None or node_rank is None:
        return None
    hosts = tuple(_parsed(environ, "SLURM_STEP_NODELIST", expand_hosts))
    tasks = tuple(_parsed(environ, "SLURM_STEP_TASKS_PER_NODE", expand_counts))
    fits = rank < num_tasks == sum(tasks) and node_rank < len(tasks) == len(hosts) and local_rank < tasks[node_rank]
    if not fits:
        values = ", ".join(
            f"{name}={environ[name]}" for name in (*names, "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
        )
        raise ConfigError(
            f"Slurm's variables contradict each other ({values}), so the rank of this process is "
            "unknown. Start it with srun, and do not set or inherit its variables.",
            code="slurm-contradicts",
        )
    return Step(
        number=environ[STEP],
        rank=rank,
        num_tasks=num_tasks,
        local_rank=local_rank,
        node_rank=node_rank,
        hosts=hosts,
        tasks=tasks,
        cpus_per_task=_count(environ, "SLURM_CPUS_PER_TASK"),
    )


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(
            f"the environment variable {name} is {text!r}, which is not a whole number as Slurm sets it",
            code="slurm-variable-invalid",
        )
    return int(text)


def _parsed(environ: Mapping[str, str], name: str, parse: Callable[[str], list[T]]) -> list[T]:
    text = environ.get(name, "")
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(
            f"the environment variable {name} is {text!r}, which is not as Slurm sets it: {error}",
            code="slurm-variable-invalid",
        ) from None
