"""What a batch can be made of: tensors, arrays, and tuples, lists, dicts and dataclasses of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import DataError


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or (hasattr(value, "__array__") and getattr(value, "ndim", None) is not None)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _rebuild(value: Any, convert: Callable[[str, Any], Any], path: str) -> Any:
    """A container of the same kind, with ``convert(path, item)`` for each item; None if it is not a container."""
    if _is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{n: convert(f"{path}.{n}", getattr(value, n)) for n in names})
    if isinstance(value, Mapping):
        items = {key: convert(f"{path}[{key!r}]", item) for key, item in value.items()}
        return items if type(value) is dict else _like_mapping(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(convert(f"{path}.{n}", item) for n, item in zip(value._fields, value, strict=True)))
    if isinstance(value, (list, tuple)):
        return type(value)([convert(f"{path}[{i}]", item) for i, item in enumerate(value)])
    return None


def _like_mapping(original: Any, items: dict[Any, Any]) -> Any:
    try:
        return type(original)(items)
    except TypeError:  # a mapping that is not made from a dict: a plain dict reads the same
        return items


def map_tensors(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """The same batch with ``function`` applied to every tensor in it. What is not a tensor or container stays as it is."""

    def convert(_: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        rebuilt = _rebuild(value, convert, "")
        return value if rebuilt is None else rebuilt

    return convert("", batch)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on ``device``, copied without waiting where its memory is pinned. On the CPU it is the batch itself.

    An object of another kind that has a ``to(device)`` method of its own (a tokeniser's batch, say) is moved by that.
    """
    if device.type == "cpu":
        return batch
    if not isinstance(batch, (Tensor, Mapping, tuple, list)) and not _is_dataclass(batch) and hasattr(batch, "to"):
        return batch.to(device)
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def _arrays(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if _is_array(value):
        yield path, value
        return
    found: list[tuple[str, Any]] = []

    def visit(inner: str, item: Any) -> Any:
        found.extend(_arrays(item, inner))
        return item

    if not isinstance(value, str):
        _rebuild(value, visit, path)
    yield from found


def count_samples(batch: Any) -> int:
    """How many samples a ready batch holds: the common length of dimension 0 of all that is in it.

    Raises:
        DataError: there is no tensor in it, one has no dimension 0, or two disagree.
    """
    first: tuple[str, int] | None = None
    for path, array in _arrays(batch, "batch"):
        if array.ndim == 0:
            raise DataError(
                f"{path} is a single number: a ready batch is cut along dimension 0, so everything in it needs one. "
                "Give a value a sample, or leave it out of the batch."
            )
        if first is None:
            first = (path, len(array))
        elif len(array) != first[1]:
            raise DataError(
                f"{first[0]} has {first[1]} rows and {path} has {len(array)}: a ready batch is cut along dimension 0, "
                "so all its tensors need the same number of rows."
            )
    if first is None:
        raise DataError(
            f"a batch of type {type(batch).__name__} holds no tensor, so it cannot be cut into shards: "
            "give prepare() a DataLoader over samples, or batches of tensors"
        )
    return first[1]


def cut(batch: Any, part: slice, num_samples: int) -> Any:
    """Some samples of a ready batch. Tensors and arrays are cut along dimension 0, and so are lists with one plain value
    a sample (texts, names); other plain values belong to the whole batch and are kept."""

    def convert(_: str, value: Any) -> Any:
        if _is_array(value):
            return value[part]
        if _is_plain_list(value, num_samples):
            return value[part]
        rebuilt = None if isinstance(value, str) else _rebuild(value, convert, "")
        return value if rebuilt is None else rebuilt

    return convert("", batch)


def _is_plain_list(value: Any, num_samples: int) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(value) == num_samples
        and all(isinstance(item, (str, bytes, int, float, type(None))) for item in value)
    )
