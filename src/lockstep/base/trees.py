"""Trees of dicts, lists and tuples with tensors at their leaves."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
SEQUENCES = (list, tuple, deque)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in its order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_in(item)


def mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """A new tree with ``leaf(value)`` in the place of each value, also of keys, that is no container of the types above.

    The containers are of the same types, exactly: a deque keeps its length, a defaultdict its factory.
    """
    kind = type(tree)
    if kind in MAPPINGS:
        made = copy.copy(tree)
        made.clear()
        for key, value in tree.items():
            made[mapped(key, leaf)] = mapped(value, leaf)
        return made
    if kind is deque:
        return deque((mapped(item, leaf) for item in tree), tree.maxlen)
    return kind(mapped(item, leaf) for item in tree) if kind in SEQUENCES else leaf(tree)
