"""A snapshot of a data set: whether the script has changed it since loader workers copied it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from torch import Tensor

_MOST = 1000
"""Values looked at, at most: the rest is taken to be unchanged."""
_LONGEST = 32
"""Items of a collection that is looked into: a list of transforms is, one of samples is not."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class DatasetSnapshot:
    """The attributes of a data set, and of the objects in it, as far as they can be read quickly.

    Values are compared by identity, plain ones by value, tensors also by their version, collections also by their length.
    What NumPy or native code writes in place is not seen.

    Args:
        dataset: the data set. Its attributes are kept alive, not copied.
    """

    def __init__(self, dataset: Any) -> None:
        self._values = list(_walk(dataset))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatasetSnapshot) or len(self._values) != len(other._values):
            return False
        return all(_same(before, now) for before, now in zip(self._values, other._values, strict=True))

    __hash__ = None  # type: ignore[assignment]


def _walk(root: Any) -> Iterator[tuple[Any, int]]:
    """Each value with its version or length, level by level."""
    level, seen, count = [root], {id(root)}, 0
    while level:
        parts = [part for item in level for part in _parts(item)]
        for part in parts:
            count += 1
            if count > _MOST:
                return
            yield part, _version(part)
        level = []
        for part in parts:
            if not isinstance(part, (*_PLAIN, Tensor)) and id(part) not in seen:
                seen.add(id(part))
                level.append(part)


def _parts(item: Any) -> Collection[Any]:
    # Exact types: a file of arrays may be a Mapping, too, and makes a new object whenever it is asked.
    if type(item) is dict:
        return item.values() if len(item) <= _LONGEST else ()
    if type(item) in (list, tuple):
        return item if len(item) <= _LONGEST else ()
    attributes = None if isinstance(item, (type, ModuleType)) else getattr(item, "__dict__", None)
    return attributes.values() if type(attributes) is dict else ()


def _version(value: Any) -> int:
    if isinstance(value, Tensor):
        return 0 if value.is_inference() else value._version
    return len(value) if type(value) in (list, tuple, dict, set) else 0


def _same(before: tuple[Any, int], now: tuple[Any, int]) -> bool:
    (a, version), (b, newer) = before, now
    return version == newer and (a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b))
