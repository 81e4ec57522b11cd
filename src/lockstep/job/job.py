"""The job of Slurm that this process belongs to, as Slurm's variables tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lockstep.errors import ConfigError
from lockstep.job.hostlist import expand_counts, expand_hosts

T = TypeVar("T")

STEP = "SLURM_STEP_ID"
"""Set in what ``srun`` starts; not in a batch script itself, nor in the shell of ``salloc``."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one ``srun`` starts, and this process's place in it."""

    number: str
    rank: int
    num_tasks: int
    local_rank: int
    node_rank: int
    hosts: tuple[str, ...]
    """By node rank."""
    tasks: tuple[int, ...]
    """Of each node, by node rank."""
    cpus_per_task: int | None
    """As it was asked for; None: it was not."""

    @property
    def tasks_here(self) -> int:
        """Tasks of this node."""
        return self.tasks[self.node_rank]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, and the step of it that this process belongs to, if it does."""

    number: str
    """Its job id; each task of an array has one of its own."""
    restart: int = 0
    """How often it was requeued, and started again."""
    array_task: str | None = None
    """Which task of a job array it is; None: of none."""
    num_nodes: int = 1
    num_tasks: int = 1
    """Those that were asked for: what an ``srun`` in the job starts, if it is told nothing else."""
    step: Step | None = None
    cpus_here: int | None = None
    """CPUs of this node that the step may use or, outside of one, the job."""
    gpus_here: int | None = None
    """GPUs of this node that it may use; None: none were asked for."""

    @property
    def name(self) -> str:
        """The same when the job was requeued: the step that does the same work has the same number then."""
        return f"slurm {self.number}.{'batch' if self.step is None else self.step.number}"

    @property
    def part(self) -> str:
        """What tells the same command in the tasks of an array apart; empty outside of arrays."""
        return "" if self.array_task is None else f"array task {self.array_task}"

    def num_cores(self, own: int) -> int | None:
        """The cores of this node that all of the step's processes here may use together; None: Slurm has not said it.

        Args:
            own: those that this process may use, by its affinity.
        """
        step = self.step
        if step is not None and step.cpus_per_task is not None:
            return min(step.cpus_per_task, own) * step.tasks_here
        if self.cpus_here is None or (step is not None and step.tasks_here > 1):
            return self.cpus_here  # each task may be bound to some of them
        return min(self.cpus_here, own)


def read_job(environ: Mapping[str, str]) -> Job | None:
    """The job that these variables tell of; None: there is none.

    Raises:
        ConfigError: a variable is not what Slurm would set.
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
        told = ", ".join(f"{name}={environ[name]}" for name in (*names, "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"))
        raise ConfigError(
            f"Slurm's variables contradict each other ({told}): this process cannot know which rank it is. Were some of them "
            "set by hand, or handed on from another step? Start it by srun, and leave them alone."
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
        raise ConfigError(f"the environment variable {name} is {text!r}, which is not a whole number as Slurm sets it")
    return int(text)


def _parsed(environ: Mapping[str, str], name: str, parse: Callable[[str], list[T]]) -> list[T]:
    text = environ.get(name, "")
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"the environment variable {name} is {text!r}, which is not as Slurm sets it: {error}") from None
