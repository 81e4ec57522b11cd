"""A family of errors that PyTorch raises, with its explanation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lockstep._tools.explain.errors.scene import Scene


@dataclass(frozen=True)
class Row:
    """How a family of errors is recognized and explained."""

    family: str
    """The family's name in the documentation."""
    pattern: re.Pattern[str]
    """The pattern that the error's text must contain."""
    words: Callable[[re.Match[str], Scene], str]
    """The function that returns the explanation; empty: it would add nothing to the error."""
    kinds: frozenset[str] = frozenset({"RuntimeError"})
    """The names of types of which the error's type or one of its bases must have one."""


def row(
    family: str, pattern: str, words: Callable[[re.Match[str], Scene], str] | str, kinds: tuple[str, ...] = ("RuntimeError",)
) -> Row:
    """A row of the table. ``words`` may be a format string for the pattern's named groups."""
    explain = words if callable(words) else lambda match, scene: words.format(**match.groupdict())
    return Row(family, re.compile(pattern), explain, frozenset(kinds))
