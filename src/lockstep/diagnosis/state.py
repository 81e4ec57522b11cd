"""What an object keeps besides its parameters and buffers, and whether that has changed; and whether weights have."""

from __future__ import annotations

import ast
import inspect
import numbers
import sys
import textwrap
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from lockstep.diagnosis.locations import file_of, owner
from lockstep.digest import digest

_MOST_WEIGHTS = 1_000_000  # that are compared after every line of the user's code
_LARGEST = 100_000  # elements whose values are compared; of more, only whether PyTorch has counted a change
_PLAIN = (numbers.Number, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
_OF_MODULES = frozenset(nn.Module().__dict__)


def _fingerprint(value: Any) -> Any:
    if isinstance(value, Tensor):
        return digest(value) if value.numel() <= _LARGEST else (id(value), value._version)
    if isinstance(value, numpy.ndarray):
        return digest(value) if value.size <= _LARGEST else id(value)
    if isinstance(value, _PLAIN):
        return digest(value)
    if isinstance(value, _CONTAINERS):
        items = list(value.items()) if isinstance(value, dict) else list(value)
        return (len(items), [_fingerprint(item) for item in items[-100:]])
    return None


class StateOf:
    """The attributes of one object: numbers, texts, tensors, arrays, and containers of them.

    Args:
        thing: the object.
        name: what to call it.

    The global variables of the user's module that defines its class are looked at too.
    """

    def __init__(self, holder: Any, name: str) -> None:
        self.holder = holder
        self.name = name
        self._before: dict[str, Any] = {}

    def look(self) -> None:
        """Remember what is there."""
        self._before = self._now()

    def changes(self) -> list[str]:
        """The names of attributes that are new or others since. A global variable has its module's name before it."""
        now = self._now()
        return [name for name, value in now.items() if self._before.get(name, ...) != value]

    def _now(self) -> dict[str, Any]:
        fingerprints: dict[str, Any] = {}
        kinds = [kind for kind in type(self.holder).__mro__ if owner(file_of(kind)) != "plumbing"]
        for kind in reversed(kinds):
            fingerprints.update(
                (name, _fingerprint(value)) for name, value in vars(kind).items() if not name.startswith("__")
            )
        for name, value in getattr(self.holder, "__dict__", {}).items():
            if not (isinstance(self.holder, nn.Module) and name in _OF_MODULES):
                fingerprints[name] = _fingerprint(value)
        if kinds and owner(file_of(kinds[0])) == "user":
            module = kinds[0].__module__
            for name, value in vars(sys.modules[module]).items():
                if not name.startswith("__"):
                    fingerprints[f"{module}.{name}"] = _fingerprint(value)
        return {name: value for name, value in fingerprints.items() if value is not None}


class WeightsOf:
    """The parameters of prepared models."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._are_few = True

    def watch(self, prefix: str, model: nn.Module) -> None:
        """Look at those of this model too. (Sharded ones change with every gathering, which is none of the user's doing.)"""
        plain = ((name, weight) for name, weight in model.named_parameters() if type(weight) is nn.Parameter)
        self._weights.update((prefix + name, weight) for name, weight in plain)
        self._are_few = sum(weight.numel() for weight in self._weights.values()) <= _MOST_WEIGHTS

    def look(self) -> None:
        """Remember what they are."""
        self._before = {name: weight.detach().clone() for name, weight in self._weights.items()}

    def changes(self, *, thoroughly: bool) -> Iterator[str]:
        """The names of those that are others since, each once. (PyTorch does not count what is changed through ``.data``, so
        all are read: if they are many, only where it is asked for.)"""
        for name, before in self._before.items() if self._are_few or thoroughly else ():
            weight = self._weights[name]
            if not torch.equal(weight, before):
                self._before[name] = weight.detach().clone()
                if digest(weight) != digest(before):  # a NaN does not equal itself
                    yield name


def describe_change(holder: Any, name: str) -> tuple[str | None, int | None]:
    """File and line of the user's code where an attribute is set; None where that cannot be seen."""
    for kind in type(holder).__mro__:
        file = file_of(kind)
        if owner(file) != "user":
            continue
        try:
            lines, first = inspect.getsourcelines(sys.modules[kind.__module__] if "." in name else kind)
        except (OSError, TypeError):
            return file, None
        offset = _where_set(textwrap.dedent("".join(lines)), name.rpartition(".")[2])
        return file, None if offset is None else max(first, 1) + offset - 1
    return None, None


_CHANGING = ("append", "extend", "add", "update", "pop", "popleft", "appendleft", "insert", "clear", "copy_", "add_", "mul_")


def _where_set(source: str, name: str) -> int | None:
    """The line of the last statement that sets ``name``, in ``__init__`` only if it is nowhere else."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    statements: list[tuple[bool, int]] = []

    def visit(node: ast.AST, *, is_making: bool) -> None:
        is_making = is_making or (isinstance(node, ast.FunctionDef) and node.name == "__init__")
        targets: list[ast.AST] = []
        if isinstance(node, ast.Assign):
            targets = list(node.targets)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            targets = [node.func.value]
        for target in targets:
            while isinstance(target, ast.Subscript):
                target = target.value
            if getattr(target, "attr", getattr(target, "id", None)) == name:
                statements.append((not is_making, node.lineno))  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            visit(child, is_making=is_making)

    visit(tree, is_making=False)
    return max(statements)[1] if statements else None
