"""How a setting is written on the command line: said with the field that holds it, and nowhere else."""

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
TORCHRUN = "As torchrun and torch.distributed.launch have them"
GROUPS = (PROCESSES, MACHINES, TRAINING, CHECKPOINTS, OUTPUT, TORCHRUN)
"""The headings of ``lockstep run --help``, in order."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The command-line option of a field."""

    names: tuple[str, ...]
    """As users write it; none: ``--`` and the field's name."""
    group: str
    metavar: str
    help: str


def option(default: Any, *names: str, group: str, help: str, metavar: str = "") -> Any:
    """A dataclass field that is an option of ``lockstep run`` as well. Its type says what may be given: ``bool`` makes a flag,
    and a ``Sequence`` an option that may be given again."""
    made = Option(names=names, group=group, metavar=metavar, help=help)
    return dataclasses.field(default=default, metadata={Option: made})


def options_of(kind: type) -> dict[str, Option]:
    """The options of a dataclass, by field."""
    found = {field.name: field.metadata.get(Option) for field in dataclasses.fields(kind)}
    return {name: option for name, option in found.items() if option is not None}


def one_of(names: Iterable[str]) -> str:
    """A metavar that lists what can be chosen."""
    return f"[{'|'.join(names)}]"
