"""The resources that a job requests from Slurm: one frozen value, validated on creation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.job.hostlist import expand_hosts
from lockstep.slurm import units

RUNTIMES = ("apptainer", "singularity")
_SIGNALS = ("USR1", "TERM")  # on which a run saves a checkpoint
_UNWRITABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Control characters except tabs, and bytes that are not text."""
_EARLY_S = 60
"""Slurm may send a signal this many seconds early (sbatch(1), --signal)."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job. Fields are named like sbatch's options."""

    script: str
    args: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``RunConfig``, as given to ``lockstep run``."""
    is_module: bool = False
    """Whether the script is a module, as for ``python -m``."""
    python: str = "python3"
    nodes: int = 1
    ntasks_per_node: int | None = None
    """Processes per node; None: one per GPU, else one."""
    gpus_per_node: str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    job_name: str = "lockstep"
    array: str | None = None
    output: str | None = None
    requeue: bool = True
    """Whether the job is requeued after a lost node, after preemption, and when it reached its time limit unfinished."""
    signal: str = "USR1@90"
    """The signal for the processes, and how many seconds before the time limit it is sent."""
    container: str | None = None
    bind: tuple[str, ...] = ()
    """Directories visible in the container, in the form of its ``--bind``."""
    runtime: str = "apptainer"
    options: tuple[str, ...] = ()
    """Further options of sbatch, unchanged."""

    def __post_init__(self) -> None:
        RunConfig(**self.settings)  # checks them
        for spec in fields(self):
            value = getattr(self, spec.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str):
                    check_text(text, "" if spec.name in ("script", "args", "options") else f"{_option(spec.name)} ")
        for name in ("nodes", "ntasks_per_node", "cpus_per_task"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_option(name)} {value}: it must be 1 or more")
        for name, parse in _PARSERS.items():
            self._parse(name, parse)
        if not re.fullmatch(rf"({'|'.join(_SIGNALS)})@\d+", self.signal):
            raise ConfigError(
                f"--signal {self.signal}: give {' or '.join(_SIGNALS)}, which ask a run to save itself, with how many seconds "
                "before the end: USR1@90"
            )
        warned_s = int(self.signal.partition("@")[2])
        if self.time is not None and units.minutes(self.time) * 60 <= warned_s + _EARLY_S:
            raise ConfigError(
                f"--time {self.time} and --signal {self.signal}: the signal may come {_EARLY_S} s early, which is at the start "
                "of this job, when there is nothing to save yet, and would end it. Give more time, or fewer seconds"
            )
        if self.array is not None and self.settings.get("run_dir") is not None:
            raise ConfigError(
                f"--array {self.array} and --run-dir {self.settings['run_dir']}: each task of an array is a run of its own, "
                "and all but one would find that directory in use. Leave --run-dir out: each resumes its own run automatically"
            )
        if self.runtime not in RUNTIMES:
            raise ConfigError(f"{self.runtime!r} cannot run a container here: choose one of {', '.join(RUNTIMES)}")
        listed = [] if self.nodelist is None else expand_hosts(self.nodelist)
        if len(listed) > self.nodes:
            raise ConfigError(
                f"--nodelist names {len(listed)} nodes, and --nodes is {self.nodes}: Slurm would take all that are named. Give "
                f"--nodes {len(listed)}, or name fewer"
            )
        _check_shards(self)

    def _parse(self, name: str, parse: Callable[[str], object]) -> None:
        text = getattr(self, name)
        if text is None:
            return
        try:
            parse(text)
        except ValueError as error:
            raise ConfigError(f"{_option(name)} {text}: {error}") from None

    @property
    def num_gpus(self) -> int:
        """Number of GPUs per node."""
        return 0 if self.gpus_per_node is None else units.gpus(self.gpus_per_node)[1]

    @property
    def tasks(self) -> int:
        """Number of processes per node."""
        devices_per_process = self.settings.get("devices_per_process") or 1
        return self.ntasks_per_node or max(1, self.num_gpus // devices_per_process)


_PARSERS: dict[str, Callable[[str], object]] = {
    "gpus_per_node": units.gpus,
    "mem": units.megabytes,
    "time": units.minutes,
    "nodelist": expand_hosts,
    "exclude": expand_hosts,
}


def check_text(text: str, option: str = "") -> None:
    """Check that a text can be written into a line of the file.

    Args:
        text: from the user.
        option: the option by which it was given, followed by a space.

    Raises:
        ConfigError: it cannot.
    """
    if _UNWRITABLE.search(text):
        raise ConfigError(
            f"{option}{text!r}: a line break, other control character, or non-text byte cannot be written into a batch file"
        )


def _check_shards(request: Request) -> None:
    shards, processes = request.settings.get("shards"), request.nodes * request.tasks
    if shards is not None and processes > shards:
        raise ConfigError(
            f"{processes} processes ({request.nodes} nodes x {request.tasks}) and --shards {shards}: more processes than "
            f"shards cannot share the work. Ask for --shards {processes} or more, or for fewer processes"
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
