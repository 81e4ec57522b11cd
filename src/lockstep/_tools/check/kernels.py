"""Calls that lead to an operation without a deterministic kernel, as far as their text shows it."""

from __future__ import annotations

import ast
from typing import Any

from lockstep._base.nondeterministic_operations import WAYS, Operation, Way


def refused_operation(name: str, call: ast.Call) -> Operation | None:
    """The operation that this call, or a layer that it makes, leads to on a GPU; None: it leads to
    none, or its text does not show it.

    Args:
        name: the full name of what is called.
    """
    if call.args and _is_on_cpu(call.args[0]):
        return None
    ways = WAYS.get(name, ())
    return next((operation for operation, way in ways if way.leads(_given(call, way))), None)


def _given(call: ast.Call, way: Way) -> dict[str, Any]:
    """The argument of a way, if its value is in the text, or does not matter."""
    if not way.argument:
        return {}
    place = way.position
    by_name = [keyword.value for keyword in call.keywords if keyword.arg == way.argument]
    if not by_name and (place >= len(call.args) or any(isinstance(part, ast.Starred) for part in call.args[: place + 1])):
        return {}
    node = by_name[0] if by_name else call.args[place]
    try:
        return {way.argument: ast.literal_eval(node)}
    except (ValueError, TypeError):
        return {} if way.only or way.unless else {way.argument: node}


def _is_on_cpu(node: ast.AST) -> bool:
    """Whether a tensor is copied to the CPU in the call itself."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    device = node.args[0] if node.args else None
    return node.func.attr == "cpu" or (node.func.attr == "to" and isinstance(device, ast.Constant) and device.value == "cpu")
