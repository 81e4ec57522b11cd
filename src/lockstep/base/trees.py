"""Trees of dicts, lists and tuples with tensors at their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in its order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_in(item)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """A copy of a tree, of plain dicts and lists, with what ``function`` returns for each tensor in its place."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(function, item) for key, item in tree.items()}
    return [map_tensors(function, item) for item in tree] if isinstance(tree, (list, tuple)) else tree
