"""The resources that a job requests from Slurm: one frozen value, validated on creation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._base.option import option
from lockstep._launch.joins import Joining

JOB = "Job"
RUNTIMES = ("apptainer", "singularity")
_SIGNALS = ("USR1", "TERM")  # on which a run saves a checkpoint


@dataclass(frozen=True, kw_only=True)
class Request:
    """The job to submit. Fields are named like sbatch's options, and are the options of ``lockstep
    slurm``."""

    script: str
    args: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The run's settings by field of ``RunConfig``, as passed to ``lockstep run``."""
    joining: Joining = field(default_factory=Joining)
    """The settings that the script itself passes to ``join()``."""
    runtime: str = "apptainer"
    """The program that runs the container."""
    nodes: int = option(1, "--nodes", "-N", group=JOB, metavar="N")
    """Number of nodes.  [default: 1]"""
    ntasks_per_node: int | str | None = option(
        None, *("--nproc-per-node", "--nproc", "--ntasks-per-node"), group=JOB, metavar="N"
    )
    """Processes per node: a number, or gpu (one per GPU). [default: one per GPU; without GPUs,
    one]"""
    gpus_per_node: str | None = option(None, group=JOB, metavar="[TYPE:]N")
    """GPUs per node.  [default: none]"""
    cpus_per_task: int | None = option(None, *("--cpus-per-task", "-c"), group=JOB, metavar="N")
    """Cores per process: one, plus one per loader worker. [default: the cluster's]"""
    mem: str | None = option(None, group=JOB, metavar="SIZE")
    """Memory per node, such as 64G; 0 for all of it.  [default: the cluster's]"""
    time: str | None = option(None, *("--time", "-t"), group=JOB, metavar="TIME")
    """Time limit: 8:00:00, or 2-12 (days-hours).  [default: the partition's]"""
    partition: str | None = option(None, "--partition", "-p", group=JOB, metavar="NAME")
    """Partition to submit to.  [default: the cluster's]"""
    account: str | None = option(None, "--account", "-A", group=JOB, metavar="NAME")
    """Account to charge the job to.  [default: the user's]"""
    qos: str | None = option(None, "--qos", "-q", group=JOB, metavar="NAME")
    """Quality of service.  [default: the account's]"""
    nodelist: str | None = option(None, "--nodelist", "-w", group=JOB, metavar="HOSTS")
    """Nodes to use: n[07-09]. [default: any]"""
    exclude: str | None = option(None, "--exclude", "-x", group=JOB, metavar="HOSTS")
    """Nodes to avoid: n[07-09]. [default: none]"""
    array: str | None = option(None, *("--array", "-a"), group=JOB, metavar="NUMBERS")
    """One task, and one run, per number: 0-9, 1,3,5, or 0-99%4 (four at a time). [default: a single
    run]"""
    job_name: str = option("lockstep", "--job-name", "-J", group=JOB, metavar="NAME")
    """Name of the job.  [default: the script's name]"""
    output: str | None = option(None, *("--output", "-o"), group=JOB, metavar="FILE")
    """Output file. [default: NAME-%j.out, where %j is the job's number]"""
    requeue: bool = option(True, "--requeue/--no-requeue", group=JOB)
    """Requeue the job after a lost node, a preemption, or its time limit, until its script has
    finished. [default: --requeue]"""
    signal: str = option("USR1@90", group=JOB, metavar="NAME@SECONDS")
    """Signal that makes processes save a checkpoint, and how many seconds before the time limit to
    send it. [default: USR1@90]"""
    container: str | None = option(None, group=JOB, metavar="IMAGE")
    """Container image to run in, with apptainer (or singularity, if only that is installed).
    [default: none]"""
    bind: Sequence[str] = option((), group=JOB, metavar="DIR")
    """Directory to make visible in the container. May be repeated."""
    python: str = option("python3", group=JOB, metavar="PATH")
    """Python interpreter.  [default: this one; in a container, its python3]"""
    options: Sequence[str] = option((), "--sbatch-option", group=JOB, metavar="OPTION")
    """Any other option for sbatch: --sbatch-option=--exclusive. May be repeated."""
    is_module: bool = option(False, "--module", "-m", group=JOB)
    """Run SCRIPT as a module, like python -m."""

    def __post_init__(self) -> None:
        config = self.config  # checks the settings
        for name in ("nodes", "cpus_per_task"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_flag(name)} {value}: must be 1 or more.", code="option-out-of-range")
        object.__setattr__(self, "ntasks_per_node", _count(self.ntasks_per_node, self.num_gpus))
        if not re.fullmatch(rf"({'|'.join(_SIGNALS)})@\d+", self.signal):
            raise ConfigError(
                f"--signal {self.signal}: expected {' or '.join(_SIGNALS)}, on which a run saves a checkpoint, and the "
                "seconds before the time limit, for example USR1@90.",
                code="signal-invalid",
            )
        if self.array is not None and config.run_dir is not None:
            raise ConfigError(
                f"--array {self.array} with --run-dir {config.run_dir}: each task of an array is a separate run, and "
                "only one could use that directory. Remove --run-dir: each task resumes its run automatically.",
                code="array-with-run-dir",
            )
        if self.runtime not in RUNTIMES:
            raise ConfigError(
                f"{self.runtime!r} is not a known container runtime. Use one of {', '.join(RUNTIMES)}.",
                code="runtime-unknown",
            )
        _check_shards(self)

    @property
    def config(self) -> RunConfig:
        """The settings of the command and of the script, as far as they are known."""
        return self.joining.merged(self.settings)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs per node."""
        return 0 if self.gpus_per_node is None else num_gpus(self.gpus_per_node)

    @property
    def tasks(self) -> int:
        """Number of processes per node."""
        devices_per_process = self.config.devices_per_process or 1
        assert not isinstance(self.ntasks_per_node, str)
        return self.ntasks_per_node or max(1, self.num_gpus // devices_per_process)


def num_gpus(text: str) -> int:
    """The number of GPUs of a node, from ``4`` or ``a100:4``.

    Raises:
        ConfigError: it has another form.
    """
    match = re.fullmatch(r"(?:[\w.-]+:)?([1-9]\d*)", text)
    if match is None:
        raise ConfigError(f"--gpus-per-node {text}: expected a number, 1 or more, or TYPE:NUMBER.", code="gpus-invalid")
    return int(match[1])


def _count(value: int | str | None, num_gpus: int) -> int | None:
    """Returns the number of processes per node; None: it is determined by the GPUs."""
    if value is None or value == "auto" or (value == "gpu" and num_gpus):
        return None
    if not str(value).isdecimal() or int(value) < 1:
        raise ConfigError(
            f"--nproc-per-node {value}: "
            + ("also set --gpus-per-node." if value == "gpu" else "expected a number, 1 or more, or gpu (one per GPU)."),
            code="nproc-invalid",
        )
    return int(value)


def _check_shards(request: Request) -> None:
    shards, processes = request.config.shards, request.nodes * request.tasks
    if shards is not None and processes > shards:
        is_asked = "shards" in request.settings
        given = f"--shards {shards}" if is_asked else f"join(shards={shards}) in {request.joining.where}"
        raise ConfigError(
            f"{processes} processes ({request.nodes} nodes x {request.tasks}) but {given}: each process needs at least one "
            f"shard. Use {'--shards ' if is_asked else 'shards='}{processes} or more, or fewer processes.",
            code="world-size-above-shards",
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
