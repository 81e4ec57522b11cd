"""The sizes by which a script multiplies or divides a loss, as in ``loss * x.shape[0] / 12``.

A shape can be recorded, since lines such as ``x.view(x.size(0), -1)`` need the shape of each shard.
As a factor of the loss it has another value than on one process, where it is the batch's."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from lockstep._base.errors import UsageError
from lockstep.integrations.accelerate._means import operation_of
from lockstep.integrations.accelerate._promise import Node, Promise, promises_in

_SIZES = ("size", "numel", "nelement")
_FACTORS = ("mul", "rmul", "multiply", "div", "divide", "truediv", "rtruediv", "true_divide")
_TERMS = ("add", "sub", "rsub", "neg", "pos", "sum", "mean", "detach", "float", "double", "half", "bfloat16", "to", "clone")


def check_factors(loss: Node) -> None:
    """Checks that no factor of a loss, or of a term of it, is a size of the batch.

    Raises:
        UsageError: one is.
    """
    todo, found = [loss], set[int]()
    while todo:
        node = todo.pop()
        if node.number in found:
            continue
        found.add(node.number)
        name, args = operation_of(node)
        parts = [arg._node for arg in args if isinstance(arg, Promise)]
        if name in _FACTORS and any(map(_is_size, parts)):
            raise UsageError(
                "accelerator.backward(loss): the loss is multiplied or divided by a size (a shape, size(), numel()) of the "
                "batch. The line is computed once per shard, so it would be the shard's size. If the loss is a mean over that "
                "number, pass it: accelerator.backward(loss, weight=x.shape[0]). For a sum over samples, write "
                'accelerator.backward(loss, reduction="sum"); for the size of the global batch, its number.',
                code="loss-scaled-by-size",
            )
        if name in _FACTORS or name in _TERMS:
            todo += parts


def _is_size(node: Node) -> bool:
    """Returns whether a recorded value is a size, or is computed from sizes alone."""
    name, args = operation_of(node)
    if node.call is getattr:
        return bool(args[1] == "shape")
    if name in _SIZES:
        return True
    parts: Sequence[Any] = [promise._node for promise in promises_in(args)]
    is_computed = node.call is operator.getitem or name in (
        *_FACTORS,
        "add",
        "sub",
        "rsub",
        "neg",
        "floordiv",
        "pow",
        "prod",
    )
    return is_computed and bool(parts) and all(map(_is_size, parts))
