"""How a batch is put together: which parts of it become promises, and how the values of shards are
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
    """A batch with ``make(path, part)`` in the place of its parts.

    Mappings at any depth, and a list or tuple at the top, keep their kind, so that
    ``model(**batch)`` and ``for x, y in loader`` work. Everything else is one part: a list further
    down may have an entry per sample.
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
    result = copy.copy(data)  # keeps what a tokenizer's batch has besides its items
    for key, item in items.items():
        result[key] = item
    return result


def shape_of(data: Any) -> Any:
    """The kind of a batch: equal for the shards that can be computed by the same lines."""
    return with_leaves(data, lambda _path, part: None if part is None else ...)


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same structure with ``function`` applied to its tensors."""
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
    """The value over a whole batch from those of its shards, in their order: rows one after
    another.

    Args:
        values: of the shards.
        sizes: their numbers of samples.
        name: of the value, for errors.

    Raises:
        UsageError: a value has no row per sample, or rows differ in shape.
    """
    first = values[0]
    if isinstance(first, Tensor):
        if any(value.ndim == 0 for value in values):
            raise UsageError(
                f"{name} is one number per shard, and whether the batch's is the mean or the sum of them is unknown: only "
                "the loss that is given to accelerator.backward() is known to be a mean. Before accelerator.backward() "
                "write value = accelerator.reduce(value, reduction='mean'), or 'sum'; or compute it from the model's "
                "outputs."
            )
        shapes = [tuple(value.shape) for value in values]
        if any(shape[0] != size for shape, size in zip(shapes, sizes, strict=True)):
            raise UsageError(
                f"{name} has shapes {shapes} in shards of {list(sizes)} samples: its first dimension does not count "
                "samples, so the rows of the shards cannot be put together. Read a value with one row per sample."
            )
        if len({shape[1:] for shape in shapes}) > 1:
            raise UsageError(
                f"{name} has shapes {shapes} in the shards of this batch, as where each shard is padded to its own "
                "longest sample, so the rows cannot be put together. Pad to one length (padding='max_length'), or read a "
                "value without that dimension."
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
        f"{name} is a {type(first).__name__} that differs from shard to shard, and has no value over the whole batch. "
        "Read tensors with one row per sample."
    )
