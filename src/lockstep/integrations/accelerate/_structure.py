"""The structure of a batch: the parts that become promises, and how the values of shards are
joined."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep._base.errors import UsageError

Path = tuple[Any, ...]


def with_leaves(data: Any, make: Callable[[Path, Any], Any]) -> Any:
    """Returns a batch with ``make(path, part)`` instead of each part.

    Mappings at any depth, and a list or tuple at the top, keep their type, so that
    ``model(**batch)`` and ``for x, y in loader`` work. Anything else is one part: a nested list may
    have one entry per sample, and then its length differs between shards.
    """
    if isinstance(data, (list, tuple)):
        parts = [_mapping(item, make, (number,)) for number, item in enumerate(data)]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return _mapping(data, make, ())


def _mapping(data: Any, make: Callable[[Path, Any], Any], path: Path) -> Any:
    if not isinstance(data, Mapping) or dataclasses.is_dataclass(data):
        return make(path, data)
    items = {key: _mapping(value, make, (*path, key)) for key, value in data.items()}
    return items if type(data) is dict else _like(data, items)


def _like(data: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if not isinstance(data, MutableMapping):
        return items
    # A copy keeps attributes: a tokenizer's BatchEncoding has more than its items.
    result = copy.copy(data)
    for key, item in items.items():
        result[key] = item
    return result


def shape_of(data: Any) -> Any:
    """Returns the structure of a batch, which is equal for shards that the same lines can
    compute."""
    return with_leaves(data, lambda _path, part: None if part is None else ...)


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Returns the structure with ``function`` applied to its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: map_tensors(getattr(value, name), function) for name in names})
    if isinstance(value, Mapping):
        items = {key: map_tensors(item, function) for key, item in value.items()}
        return items if type(value) is dict else _like(value, items)
    if isinstance(value, (list, tuple)):
        items_ = [map_tensors(item, function) for item in value]
        return type(value)(*items_) if hasattr(value, "_fields") else type(value)(items_)
    return value


def join(values: Sequence[Any], sizes: Sequence[int], name: str) -> Any:
    """Joins the values of shards, in shard order, to the value over the global batch.

    Args:
        values: the values of the shards, with one row per sample.
        sizes: the numbers of samples of the shards.
        name: the name of the value, for errors.

    Raises:
        UsageError: a value does not have one row per sample, or rows differ in shape.
    """
    first = values[0]
    if isinstance(first, Tensor):
        if any(value.ndim == 0 for value in values):
            raise UsageError(
                f"{name} is one number per shard, and lockstep cannot know whether to average or sum it (only the loss passed "
                "to accelerator.backward() is known to be a mean). Before accelerator.backward(), write value = "
                "accelerator.reduce(value, reduction='mean') or 'sum'.",
                code="mean-or-sum",
            )
        shapes = [tuple(value.shape) for value in values]
        if any(shape[0] != size for shape, size in zip(shapes, sizes, strict=True)):
            raise UsageError(
                f"{name} has shapes {shapes} in shards of {list(sizes)} samples, so its first dimension does not count samples "
                "and rows cannot be joined. Read a value with one row per sample.",
                code="rows-per-sample",
            )
        if len({shape[1:] for shape in shapes}) > 1:
            raise UsageError(
                f"{name} has shapes {shapes} in the shards of this batch, so its rows cannot be joined (each shard may be "
                "padded to its longest sample). Pad to one length (padding='max_length'), or read a value without that "
                "dimension.",
                code="unequal-rows",
            )
        return torch.cat(list(values))
    if isinstance(first, Mapping):
        items = {key: join([value[key] for value in values], sizes, f"{name}[{key!r}]") for key in first}
        return items if type(first) is dict else _like(first, items)
    if isinstance(first, (list, tuple)) and all(len(value) == size for value, size in zip(values, sizes, strict=True)):
        return [item for value in values for item in value]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    raise UsageError(
        f"{name} is a {type(first).__name__} that differs between shards, so it has no value over the global batch. Read a "
        "tensor with one row per sample.",
        code="differs-between-shards",
    )
