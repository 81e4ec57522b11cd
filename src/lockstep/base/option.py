"""Command-line options, defined by the dataclass fields that they set."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
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
    choices: tuple[str, ...] = ()
    """The valid values, as its metavar shows them; empty: not a fixed list."""


def option(default: Any, *names: str, group: str, help: str, metavar: str = "", choices: Iterable[str] = ()) -> Any:
    """A dataclass field that is also an option of ``lockstep run``. Its annotation gives the type: ``bool`` makes a flag, a
    ``Sequence`` an option that may be repeated."""
    valid = tuple(choices)
    metadata = {Option: Option(names=names, group=group, metavar=metavar or one_of(valid), help=help, choices=valid)}
    return dataclasses.field(default=default, metadata=metadata)


def options_of(kind: type) -> dict[str, Option]:
    """The options of a dataclass, by field."""
    return {field.name: field.metadata[Option] for field in dataclasses.fields(kind) if Option in field.metadata}


def one_of(names: Collection[str]) -> str:
    """A metavar that lists the choices; empty if there are none."""
    return f"[{'|'.join(names)}]" if names else ""
