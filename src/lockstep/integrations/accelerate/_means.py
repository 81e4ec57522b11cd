"""Which noted values are means over the batch: the loss that is given to ``backward``, and what
that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lockstep.integrations.accelerate._promise import Node, Promise, call_method

_SAME = ("detach", "float", "double", "half", "bfloat16", "to", "clone", "type", "cpu")
"""Methods whose result is a mean if, and only if, the number is."""


def means_of(loss: Node) -> list[Node]:
    """The loss, and those values that it is a sum, difference or multiple of: if it is a mean over
    samples, so are they.

    A value that the loss follows from in another way (the outputs of a model, say) is none of
    these."""
    found: dict[int, Node] = {}
    todo = [loss]
    while todo:
        node = todo.pop()
        if node.number not in found and not node.has_value:
            found[node.number] = node
            todo += [promise._node for promise in _terms(node)]
    return [found[number] for number in sorted(found)]


def _terms(node: Node) -> Sequence[Promise]:
    """What the value is a sum, difference or multiple of."""
    args = node.args
    if node.call is call_method:
        owner, name, *rest = args
        if isinstance(owner, Promise) and name in _SAME:
            return [owner]
        args = (owner, *rest)
    else:
        name = getattr(node.call, "__name__", "").strip("_")
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
    """Whether a value is a sum with something that is not of its batch, in the form of ``total +=
    value``."""
    name = getattr(node.call, "__name__", "").strip("_")
    return name in ("add", "radd", "iadd") and len(node.args) == 2 and not isinstance(node.args[0], Promise)
