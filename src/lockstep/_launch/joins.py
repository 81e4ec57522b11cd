"""The settings that a script gives to ``lockstep.join()``, as far as its text shows: so that what
``join()`` would refuse on every rank is refused before any process is started, or any job is
submitted.

Read, not guessed: of a call that is not made by every start of the script (behind an ``if``, or an
early ``return``, or in a function that may not be called), of two different calls, and of what is
no constant nothing is concluded."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._launch.source import Source

_JOIN = "lockstep.join"
_BY_HAND = ("rank", "world_size")
"""Arguments of ``join`` that are no settings."""
_CONDITIONS = (
    *(ast.If, ast.IfExp, ast.Try, ast.While, ast.For, ast.AsyncFor, ast.Match, ast.BoolOp),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_EXIT = re.compile(r"\b(exit|quit|_exit|SystemExit|exec\w*)\b")
_SWALLOWS = re.compile(r"\b(suppress|raises)\b")


@dataclass(frozen=True, kw_only=True)
class Joining:
    """What the script gives to the only call of ``join()`` that is in its text."""

    where: str = ""
    """``train.py, line 3``; empty: nothing is known of it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that are constants in the call, by name. A name may belong to no setting."""

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
    if source is None or len(calls) != 1 or calls[0] not in _SureCalls(source.tree).calls:
        return Joining()
    settings: dict[str, Any] = {}
    for keyword in calls[0].keywords:
        if keyword.arg is not None and keyword.arg not in _BY_HAND:
            try:
                settings[keyword.arg] = ast.literal_eval(keyword.value)
            except ValueError:
                continue
    return Joining(where=source.line_of(calls[0]), settings=settings)


class _EndError(Exception):
    """The program may have exited here."""


class _ReturnError(Exception):
    """The function may have returned here."""


class _SureCalls:
    """The calls that the program makes whatever its arguments are: from the top, through functions
    of the script, up to where it may have exited."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: list[ast.Call] = []
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        with contextlib.suppress(_EndError):
            self._follow(tree.body)

    def _follow(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if _is_main_guard(statement):
                self._follow(statement.body)
                continue
            if isinstance(statement, ast.With) and not _may_swallow(statement):
                self._make(*statement.items)
                self._follow(statement.body)
                continue
            # A `with` that may suppress an error makes no call certain: an error may skip the rest
            # of its block, and the program continues after it.
            if not isinstance(statement, ast.With):
                self._make(statement)
            inside = list(_inside(statement))
            if any(map(_is_exit, inside)):
                raise _EndError
            if any(isinstance(node, ast.Return) for node in inside):
                raise _ReturnError

    def _make(self, *nodes: ast.AST) -> None:
        calls = (call for node in nodes for call in _inside(node, but=_CONDITIONS) if isinstance(call, ast.Call))
        for call in calls:
            self.calls.append(call)
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            # A second call shows nothing new, and a recursion would not end.
            if (function := self._functions.pop(name, None)) is not None:
                with contextlib.suppress(_ReturnError):
                    self._follow(function.body)


def _inside(node: ast.AST, but: tuple[type[ast.AST], ...] = ()) -> Iterator[ast.AST]:
    """The node and all below it that run as it does; ``but``: not what these kinds of nodes
    contain."""
    if isinstance(node, (*_DEFINITIONS, *but)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _inside(child, but)
    yield node


def _is_exit(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else node.exc if isinstance(node, ast.Raise) else None
    return called is not None and _EXIT.search(ast.unparse(called)) is not None


def _may_swallow(statement: ast.With) -> bool:
    """Whether the program may continue after an error in this block."""
    return any(_SWALLOWS.search(ast.unparse(item.context_expr)) for item in statement.items)


def _is_main_guard(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "__name__"
