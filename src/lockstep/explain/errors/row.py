"""One family of errors that PyTorch raises, and its words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.explain.errors.scene import Scene


@dataclass(frozen=True)
class Row:
    """How a family is recognized, and who explains it."""

    family: str
    """As the documentation calls it."""
    pattern: re.Pattern[str]
    """Found in the text of the error."""
    words: Callable[[re.Match[str], Scene], str]
    """The explanation. Empty: these words would add nothing to the error's own."""
    kinds: frozenset[str] = frozenset({"RuntimeError"})
    """The error's type, or one that it is derived from, has one of these names."""


def row(
    family: str, pattern: str, words: Callable[[re.Match[str], Scene], str] | str, kinds: tuple[str, ...] = ("RuntimeError",)
) -> Row:
    """A row of the table; ``words`` without anything to find out may be a text, with the pattern's named groups in it."""
    if isinstance(words, str):
        text = words
        return Row(family, re.compile(pattern), lambda match, scene: text.format(**match.groupdict()), frozenset(kinds))
    return Row(family, re.compile(pattern), words, frozenset(kinds))
