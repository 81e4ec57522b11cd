"""Whether an object's state besides parameters and buffers has changed, and whether weights have."""

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

from lockstep.base.digest import digest
from lockstep.base.tracebacks.frames import owner
from lockstep.tools.verify.diagnosis.locations import file_of

_MOST_WEIGHTS = 1_000_000
"""Elements; more are not compared after every line of the user's code."""
_LARGEST = 100_000
"""Elements of a tensor whose values are compared; of a larger one, only PyTorch's version counter."""
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


class ObjectState:
    """The attributes of one object that are numbers, strings, tensors, arrays, or containers of these, and the global variables
    of the module that defines its class, if that is the user's.

    Args:
        holder: the object.
        name: its name, for the user.
    """

    def __init__(self, holder: Any, name: str) -> None:
        self.holder = holder
        self.name = name
        self._before: dict[str, Any] = {}

    def remember(self) -> None:
        """Remember the present state."""
        self._before = self._now()

    def changes(self) -> list[str]:
        """The names of attributes that have changed or are new since. A global variable is prefixed with its module's name."""
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


class Weights:
    """The parameters of prepared models."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._are_few = True

    def watch(self, prefix: str, model: nn.Module) -> None:
        """Add a model's parameters, except sharded ones, which change whenever they are gathered."""
        plain = ((name, weight) for name, weight in model.named_parameters() if type(weight) is nn.Parameter)
        self._weights.update((prefix + name, weight) for name, weight in plain)
        self._are_few = sum(weight.numel() for weight in self._weights.values()) <= _MOST_WEIGHTS

    def remember(self) -> None:
        """Remember the present values."""
        self._before = {name: weight.detach().clone() for name, weight in self._weights.items()}

    def changes(self, *, thoroughly: bool) -> Iterator[str]:
        """The names of those that have changed since, each once. All values are compared, since PyTorch does not count changes
        through ``.data``; if there are many, only ``thoroughly``."""
        for name, before in self._before.items() if self._are_few or thoroughly else ():
            weight = self._weights[name]
            if not torch.equal(weight, before):
                self._before[name] = weight.detach().clone()
                if digest(weight) != digest(before):  # NaN is not equal to itself
                    yield name


def describe_change(holder: Any, name: str) -> tuple[str | None, int | None]:
    """The file and line of the user's code that set an attribute; None: unknown."""
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


_MUTATORS = ("append", "extend", "add", "update", "pop", "popleft", "appendleft", "insert", "clear", "copy_", "add_", "mul_")


def _where_set(source: str, name: str) -> int | None:
    """The line of the last statement that sets ``name``; one in ``__init__`` only if there is no other."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    statements: list[tuple[bool, int]] = []

    def visit(node: ast.AST, *, in_init: bool) -> None:
        in_init = in_init or (isinstance(node, ast.FunctionDef) and node.name == "__init__")
        targets: list[ast.AST] = []
        if isinstance(node, ast.Assign):
            targets = list(node.targets)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            targets = [node.func.value]
        for target in targets:
            while isinstance(target, ast.Subscript):
                target = target.value
            if getattr(target, "attr", getattr(target, "id", None)) == name:
                statements.append((not in_init, node.lineno))  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            visit(child, in_init=in_init)

    visit(tree, in_init=False)
    return max(statements)[1] if statements else None
