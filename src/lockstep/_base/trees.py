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


def mapped(tree: Any, leaf: Callable[[Any], Any], key: Callable[[Any], Any] | None = None) -> Any:
    """Returns a new tree with ``leaf(value)`` instead of each value that is not a container of the
    types above, and ``key(value)`` in the keys of dicts (``leaf`` if there is no ``key``).

    The containers have exactly the same types: a deque keeps its length, a defaultdict its factory.
    """
    kind, of_key = type(tree), leaf if key is None else key
    if kind in MAPPINGS:
        # A copy, since a constructor would need more: the factory of a defaultdict.
        made = copy.copy(tree)
        made.clear()
        for name, value in tree.items():
            made[mapped(name, of_key)] = mapped(value, leaf, key)
        return made
    if kind is deque:
        return deque((mapped(item, leaf, key) for item in tree), tree.maxlen)
    return kind(mapped(item, leaf, key) for item in tree) if kind in SEQUENCES else leaf(tree)


def is_circular(tree: Any, within: tuple[int, ...] = ()) -> bool:
    """Returns whether a container contains itself, directly or indirectly."""
    kind = type(tree)
    if kind not in MAPPINGS and kind not in SEQUENCES:
        return False
    within = (*within, id(tree))
    items = tree.values() if kind in MAPPINGS else tree
    return any(id(item) in within or is_circular(item, within) for item in items)
