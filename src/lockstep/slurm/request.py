"""What a job asks Slurm for: one frozen value, checked when it is made."""

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
_SIGNALS = ("USR1", "TERM")  # those that a run takes for a request to save itself
_UNWRITABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Control characters, but for tabs; and bytes that are no text."""
_EARLY_S = 60
"""So many seconds too early Slurm may send a signal (sbatch(1), --signal)."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job: a script, on which machines, for how long. Names are those of sbatch's options."""

    script: str
    args: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``RunConfig``, as ``lockstep run`` would take them."""
    is_module: bool = False
    """Whether the script is the name of a module, as for ``python -m``."""
    python: str = "python3"
    nodes: int = 1
    ntasks_per_node: int | None = None
    """Processes on each node; None: one for each GPU, else one."""
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
    """Whether the job comes again after a lost node, after it made room, and when its time was up before it was done."""
    signal: str = "USR1@90"
    """What the processes get, and how many seconds before the time is up."""
    container: str | None = None
    bind: tuple[str, ...] = ()
    """Directories for the container, as its own ``--bind`` takes them."""
    runtime: str = "apptainer"
    options: tuple[str, ...] = ()
    """More options of sbatch, as they are."""

    def __post_init__(self) -> None:
        RunConfig(**self.settings)  # checks them
        for one in fields(self):
            value = getattr(self, one.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str):
                    check_text(text, "" if one.name in ("script", "args", "options") else f"{_option(one.name)} ")
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
                "and all but one would find that directory in use. Leave --run-dir out: each resumes its own run by itself"
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
        """GPUs of each node."""
        return 0 if self.gpus_per_node is None else units.gpus(self.gpus_per_node)[1]

    @property
    def tasks(self) -> int:
        """Processes on each node."""
        each = self.settings.get("devices_per_process") or 1
        return self.ntasks_per_node or max(1, self.num_gpus // each)


_PARSERS: dict[str, Callable[[str], object]] = {
    "gpus_per_node": units.gpus,
    "mem": units.megabytes,
    "time": units.minutes,
    "nodelist": expand_hosts,
    "exclude": expand_hosts,
}


def check_text(text: str, option: str = "") -> None:
    """Refuse what would end a line of the file, or cannot be written into it.

    Args:
        text: from the user.
        option: what it was given as, with a space behind it.

    Raises:
        ConfigError: it cannot be there.
    """
    if _UNWRITABLE.search(text):
        raise ConfigError(
            f"{option}{text!r}: a line break, another control character or a byte that is no text cannot stand in a batch file"
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
