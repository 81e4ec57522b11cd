"""The recorded values that are means over the batch.

A scalar does not show whether its value over the global batch is the mean or the sum of the shards'
values. The loss that the script passes to ``backward`` is a mean, and so is each of its terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lockstep.integrations.accelerate._promise import Node, Promise, call_method

_SAME = ("detach", "float", "double", "half", "bfloat16", "to", "clone", "type", "cpu")
"""The methods whose result is a mean if, and only if, the tensor is a mean."""


def means_of(loss: Node) -> list[Node]:
    """Returns the loss and the values of which it is a sum, difference or multiple. If the loss is
    a mean over samples, these values are means as well.

    Other inputs of the loss, such as the outputs of a model, are not included."""
    found: dict[int, Node] = {}
    todo = [loss]
    while todo:
        node = todo.pop()
        if node.number not in found and not node.has_value:
            found[node.number] = node
            todo += [promise._node for promise in _terms(node)]
    return [found[number] for number in sorted(found)]


def operation_of(node: Node) -> tuple[str, Sequence[Any]]:
    """Returns the name of an operation, without underscores, and its arguments: ``add`` for ``a +
    b``, ``torch.add(a, b)`` and ``a.add(b)``."""
    if node.call is call_method and node.args:
        owner, name, *rest = node.args
        return name, (owner, *rest)
    return getattr(node.call, "__name__", "").strip("_"), node.args


def _terms(node: Node) -> Sequence[Promise]:
    """Returns the promises of which the value is a sum, difference or multiple."""
    name, args = operation_of(node)
    if node.call is call_method and isinstance(args[0], Promise) and name in _SAME:
        return [args[0]]
    if node.kwargs:
        return []
    if name in ("neg", "pos", *_SAME) and len(args) == 1:
        return [arg for arg in args if isinstance(arg, Promise)]
    if len(args) != 2:
        return []
    promises = [arg for arg in args if isinstance(arg, Promise)]
    if name in ("add", "radd", "sub", "rsub"):
        return promises
    if (
        name in ("mul", "rmul")
        and len(promises) == 1
        and all(_is_number(arg) for arg in args if not isinstance(arg, Promise))
    ):
        return promises
    if name in ("truediv", "div") and isinstance(args[0], Promise) and _is_number(args[1]):
        return promises
    return []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)


def is_sum_with_another(node: Node) -> bool:
    """Returns whether a value is the sum of a promise and a value of the script, as in ``total +=
    value``."""
    name = getattr(node.call, "__name__", "").strip("_")
    return name in ("add", "radd", "iadd") and len(node.args) == 2 and not isinstance(node.args[0], Promise)
