"""Command-line options, defined by the dataclass fields that they set.

The help of an option is the first paragraph of its docstring."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from lockstep._base.errors import ConfigError, unknown_name

PROCESSES = "Processes"
MACHINES = "Several machines"
TRAINING = "Training (scripts that call lockstep.join(); a conflict with it is an error)"
CHECKPOINTS = "Checkpoints (scripts that call lockstep.join())"
OUTPUT = "Output"
TORCHRUN = "Compatibility with torchrun and torch.distributed.launch"
GROUPS = (PROCESSES, MACHINES, TRAINING, CHECKPOINTS, OUTPUT, TORCHRUN)
"""The headings of ``lockstep run --help``, in order."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The command-line option of a field."""

    names: tuple[str, ...]
    """The names on the command line; empty: ``--`` and the field's name."""
    group: str
    metavar: str
    choices: tuple[str, ...] = ()
    """The valid values, as its metavar shows them; empty: not a fixed list."""
    least: int | None = None
    """The smallest valid whole number; None: not a number, or not limited."""
    most: int | None = None


def option(
    default: Any,
    *names: str,
    group: str,
    metavar: str = "",
    choices: Iterable[str] = (),
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """Returns a dataclass field that is also an option of ``lockstep run``. Its annotation sets the
    type: ``bool`` makes a flag, a ``Sequence`` an option that may be repeated. The other arguments
    are the fields of ``Option``; ``check_options`` checks them."""
    valid = tuple(choices)
    described = Option(names=names, group=group, metavar=metavar or one_of(valid), choices=valid, least=least, most=most)
    return dataclasses.field(default=default, metadata={Option: described})


def check_options(values: Any) -> None:
    """Checks the options of a dataclass instance against their descriptions. Call it in
    ``__post_init__``.

    Raises:
        ConfigError: a value is not among its choices, or not a whole number within its limits.
    """
    for field in dataclasses.fields(values):
        value, described = getattr(values, field.name), field.metadata.get(Option)
        # None is the default of such a field: not set, and so not limited.
        if described is None or (value is None and field.default is None):
            continue
        if described.choices and value not in described.choices:
            raise unknown_name(field.name, value, described.choices)
        least, most = described.least, described.most
        if least is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ConfigError(
                f"{field.name}={value!r}: must be a whole number, {least} or more.", code="option-out-of-range"
            )
        if most is not None and value > most:
            raise ConfigError(f"{field.name}={value}: must be {most} or less.", code="option-out-of-range")


def options_of(kind: type) -> dict[str, Option]:
    """Returns the options of a dataclass by field."""
    return {field.name: field.metadata[Option] for field in dataclasses.fields(kind) if Option in field.metadata}


@functools.cache
def help_of(kind: type) -> dict[str, str]:
    """Returns the help of a dataclass's options by field. Python keeps no docstrings of fields, so
    this parses the source."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:  # there is no source
        return {}
    assert isinstance(body, ast.ClassDef)
    texts = {}
    # The docstring of a field is a statement that follows it, which Python evaluates and drops.
    for field, text in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            first, _, _ = inspect.cleandoc(str(text.value.value)).partition("\n\n")
            # Two spaces before the default, wherever the line of the source was broken.
            texts[ast.unparse(field.target)] = " ".join(first.split()).replace(" [default: ", "  [default: ")
    return texts


def one_of(names: Collection[str]) -> str:
    """Returns a metavar that lists the choices; empty if there are none."""
    return f"[{'|'.join(names)}]" if names else ""
