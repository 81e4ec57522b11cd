"""One stage of the series: its command, its purpose, and where to look if it fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Of the repository."""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The machines of a series on several, as ``lockstep run`` takes them."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the stages of a series run on."""

    device: str
    """``cuda``; or, in a rehearsal, ``cpu`` or ``simulated``."""
    num_devices: int
    """Of that kind, that this machine has; in a rehearsal on the CPU, the processes that stand for
    them."""
    out: Path
    """The directory of the report, for what a stage leaves there."""
    hosts: Hosts | None = None
    """The machines of the stages that need several; None: there is only this one."""

    @property
    def is_rehearsal(self) -> bool:
        return self.device != "cuda"

    @property
    def device_of_runs(self) -> str:
        """The device for ``lockstep run --device``. A simulated device is PyTorch's only
        accelerator, so it is found automatically."""
        return "auto" if self.device == "simulated" else self.device


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A command that passes if its status is 0."""

    name: str
    shows: str
    """What is known when it has passed, in a line."""
    command: Callable[[Setting, Path], list[str]]
    """Made from the setting, and the file for what it finds (a JSON object)."""
    limit_s: float
    """After so long it has hung: all its processes are ended, and it has failed."""
    causes: tuple[str, ...]
    """What is likely if it fails, the likeliest first."""
    read: tuple[str, ...]
    """Files of the repository to read then."""
    distributions: tuple[str, ...] = ()
    """The packages that the stage needs in addition to lockstep's requirements."""
    least_devices: int = 1
    instead: str = ""
    """What a machine with fewer devices is told."""
    needs_hosts: bool = False
    """Whether it needs several machines."""
    environ: tuple[tuple[str, str], ...] = ()
    """Environment variables on a GPU."""
    only_on_a_card: str = ""
    """What a rehearsal leaves out."""


def check(name: str, *options: str) -> Callable[[Setting, Path], list[str]]:
    """The command of a check of this package."""

    def command(setting: Setting, found: Path) -> list[str]:
        size = ["--tiny"] if setting.is_rehearsal else []
        about = {"num_devices": setting.num_devices, "out": setting.out, **(vars(setting.hosts) if setting.hosts else {})}
        given = [word.format(**about) for word in options]
        return [
            sys.executable,
            "-m",
            f"gpu.checks.{name}",
            "--device",
            setting.device_of_runs,
            "--found",
            str(found),
            *size,
            *given,
        ]

    return command
