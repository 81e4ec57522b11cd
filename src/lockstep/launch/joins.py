"""The settings that a script gives to ``lockstep.join()``, as far as its text tells: so that what ``join()`` would refuse on
every rank is refused before any process is started, or any job is submitted.

Told, not guessed: of a call under a condition, of two different calls, and of what is no constant nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.base.config import RunConfig
from lockstep.base.errors import ConfigError
from lockstep.launch.source import Source

_JOIN = "lockstep.join"
_BY_HAND = ("rank", "world_size")
"""Arguments of ``join`` that are no settings."""
_CONDITIONS = (ast.If, ast.IfExp, ast.Try, ast.While, ast.Match, ast.BoolOp)


@dataclass(frozen=True, kw_only=True)
class Joining:
    """What the script gives to the only call of ``join()`` that is in its text."""

    where: str = ""
    """``train.py, line 3``; empty: nothing is known of it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those that are constants there, by name. The name may be of no setting."""

    def merged(self, settings: Mapping[str, Any]) -> RunConfig:
        """The settings of the command and of the script together, as ``join()`` will merge them.

        Raises:
            ConfigError: it will refuse them.
        """
        RunConfig.merge(settings, {})  # what is wrong in the command needs no line of the script
        try:
            return RunConfig.merge(settings, self.settings)
        except ConfigError as error:
            raise ConfigError(f"{self.where}, join(): {error}") from None


def joining_of(source: Source | None) -> Joining:
    """What is known of the call in a script; ``source``: None: it could not be read."""
    calls = [] if source is None else [node for node, name in source.calls() if name == _JOIN]
    if source is None or len(calls) != 1 or calls[0] in _conditional(source.tree):
        return Joining()
    settings: dict[str, Any] = {}
    for keyword in calls[0].keywords:
        if keyword.arg is not None and keyword.arg not in _BY_HAND:
            try:
                settings[keyword.arg] = ast.literal_eval(keyword.value)
            except ValueError:
                continue
    return Joining(where=source.line_of(calls[0]), settings=settings)


def _conditional(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one that run under a condition, other than ``if __name__ == "__main__"``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _CONDITIONS) and not _is_main_guard(child):
            yield from ast.walk(child)
        else:
            yield from _conditional(child)


def _is_main_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "__name__"
