"""Command-line options, defined by the dataclass fields that they set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PROCESSES = "Processes"
MACHINES = "Several machines"
TRAINING = "Training (only for scripts that call lockstep.join())"
CHECKPOINTS = "Checkpoints (for the same scripts)"
OUTPUT = "Output"
TORCHRUN = "Compatibility with torchrun and torch.distributed.launch"
GROUPS = (PROCESSES, MACHINES, TRAINING, CHECKPOINTS, OUTPUT, TORCHRUN)
"""The headings of ``lockstep run --help``, in order."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The command-line option of a field."""

    names: tuple[str, ...]
    """Its names on the command line; empty: ``--`` and the field's name."""
    group: str
    metavar: str
    help: str


def option(default: Any, *names: str, group: str, help: str, metavar: str = "") -> Any:
    """A dataclass field that is also an option of ``lockstep run``. Its annotation gives the type: ``bool`` makes a flag, a
    ``Sequence`` an option that may be repeated."""
    metadata = {Option: Option(names=names, group=group, metavar=metavar, help=help)}
    return dataclasses.field(default=default, metadata=metadata)


def options_of(kind: type) -> dict[str, Option]:
    """The options of a dataclass, by field."""
    return {field.name: field.metadata[Option] for field in dataclasses.fields(kind) if Option in field.metadata}


def one_of(names: Iterable[str]) -> str:
    """A metavar that lists the choices."""
    return f"[{'|'.join(names)}]"
