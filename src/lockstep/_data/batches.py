"""Batches as nested structures: tensors, arrays, and tuples, lists, dicts and dataclasses of
them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from lockstep._base.errors import DataError


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or (hasattr(value, "__array__") and getattr(value, "ndim", None) is not None)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _rebuild(value: Any, convert: Callable[[str, Any], Any], path: str, *, copies: bool = False) -> Any:
    """Returns a container of the same kind, with ``convert(path, item)`` for each item; None: the
    value is no container.

    A dataclass is made again, so that what its ``__post_init__`` derives fits the items; with
    ``copies`` it is copied, since what that method does to the items must not be done twice."""
    if copies and _is_dataclass(value):
        result = copy.copy(value)
        # Also what is no field: that method may have derived it, or a cached property.
        all_names = dict.fromkeys([*(field.name for field in dataclasses.fields(value)), *getattr(value, "__dict__", ())])
        for name in all_names:
            if hasattr(value, name):
                _set(result, name, convert(f"{path}.{name}", getattr(value, name)))
        return result
    if _is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{n: convert(f"{path}.{n}", getattr(value, n)) for n in names})
    if isinstance(value, Mapping):
        items = {key: convert(f"{path}[{key!r}]", item) for key, item in value.items()}
        return items if type(value) is dict else _like_mapping(value, items)
    if _is_named_tuple(value):
        return type(value)(*(convert(f"{path}.{n}", item) for n, item in zip(value._fields, value, strict=True)))
    if isinstance(value, (list, tuple)):
        return type(value)([convert(f"{path}[{i}]", item) for i, item in enumerate(value)])
    return None


def _set(instance: Any, name: str, value: Any) -> None:
    try:
        setattr(instance, name, value)
    except (AttributeError, TypeError):  # it is frozen, or refuses changes by a method of its own
        object.__setattr__(instance, name, value)


def _like_mapping(original: Any, items: dict[Any, Any]) -> Any:
    # A copy keeps the attributes of the object (a tokenizer's batch has some).
    if isinstance(original, MutableMapping):
        result = copy.copy(original)
        for key, item in items.items():  # ``update`` of a Counter would add
            result[key] = item
        return result
    try:
        return type(original)(items)
    except TypeError:  # its class takes no dict: a plain dict can be read in the same way
        return items


def as_is(batch: Any) -> Any:
    """Returns the batch."""
    return batch


def map_tensors(
    function: Callable[[Tensor], Any], batch: Any, method_name: str = "", call: Callable[[Any], Any] = as_is
) -> Any:
    """Returns the batch with ``function`` applied to every tensor in it. Values of other kinds are
    unchanged.

    If an object that is no mapping has a method named ``method_name``, ``call`` is applied to it
    instead: the object may be a container with special rules, such as ``PackedSequence``.
    """

    def convert(_: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if method_name and not isinstance(value, Mapping) and callable(getattr(value, method_name, None)):
            return call(value)
        rebuilt = _rebuild(value, convert, "", copies=True)
        return value if rebuilt is None else rebuilt

    return convert("", batch)


def map_leaves(function: Callable[[Any], Any], batch: Any) -> Any:
    """Returns the batch with ``function`` applied to each value in it that is no container."""

    def convert(_: str, value: Any) -> Any:
        rebuilt = _rebuild(value, convert, "", copies=True)
        return function(value) if rebuilt is None else rebuilt

    return convert("", batch)


def to_device(batch: Any, device: torch.device, *, non_blocking: bool = True) -> Any:
    """Returns the batch on ``device``, copied asynchronously if its memory is pinned and
    ``non_blocking`` is True. On the CPU it is the batch itself.

    Objects of other kinds are moved by their ``to(device)`` method, if they have one.
    """
    if device.type == "cpu":
        return batch
    return map_tensors(
        lambda tensor: tensor.to(device, non_blocking=non_blocking),
        batch,
        "to",
        lambda value: object_to_device(value, device, non_blocking=non_blocking),
    )


def object_to_device(value: Any, device: torch.device, *, non_blocking: bool) -> Any:
    """Returns an object that its method ``to`` has moved to ``device``, asynchronously if its
    memory is pinned, ``non_blocking`` is True and its class can pass that on."""
    if non_blocking:
        # No signature tells whether it can: ``to(*args, **kwargs)`` may pass them on to something
        # that does not know the argument, as detectron2's Instances do.
        with contextlib.suppress(TypeError):
            return value.to(device, non_blocking=True)
    return value.to(device)


def pin(batch: Any) -> Any:
    """Returns the batch in pinned memory. Objects of other kinds are pinned by their
    ``pin_memory()`` method, if they have one."""
    return map_tensors(Tensor.pin_memory, batch, "pin_memory", methodcaller("pin_memory"))


def _arrays(batch: Any, path: str) -> list[tuple[str, Any]]:
    """Returns all tensors and arrays in a value, with their paths, which begin with ``path``."""
    found: list[tuple[str, Any]] = []

    def visit(path: str, value: Any) -> Any:
        if _is_array(value):
            found.append((path, value))
        elif not isinstance(value, str):
            _rebuild(value, visit, path)
        return value

    visit(path, batch)
    return found


def count_samples(batch: Any) -> int:
    """Returns the number of samples in a ready batch: the common length of dimension 0 of all its
    tensors and arrays.

    Raises:
        DataError: the batch has no tensor, one has no dimension 0, or two have different lengths.
    """
    first: tuple[str, int] | None = None
    for path, array in _arrays(batch, "batch"):
        if array.ndim == 0:
            raise DataError(
                f"{path} is a single number, but a ready batch is split along dimension 0. Pass one value per sample, or "
                "remove it from the batch.",
                code="batch-without-dimension",
            )
        if first is None:
            first = (path, len(array))
        elif len(array) != first[1]:
            raise DataError(
                f"{first[0]} has {first[1]} rows and {path} has {len(array)}, but a ready batch is split along dimension 0. "
                "Give all its tensors the same number of rows.",
                code="batch-rows-differ",
            )
    if first is None:
        raise DataError(
            f"cannot split a batch of type {type(batch).__name__} into shards: it contains no tensor. Pass prepare() a "
            "DataLoader over samples, or batches of tensors.",
            code="batch-without-tensor",
        )
    return first[1]


def cut(batch: Any, part: slice, num_samples: int) -> Any:
    """Returns the samples ``part`` of a ready batch of ``num_samples``.

    Tensors and arrays are split along dimension 0, and so are lists with one value per sample
    (texts, names, lists of tokens). Other plain values, tuples of numbers, and lists of another
    length belong to the batch itself and are kept.

    Raises:
        DataError: it is ambiguous how to split a value.
    """

    def convert(path: str, value: Any) -> Any:
        if _is_array(value):
            return value[part]
        if isinstance(value, (str, bytes)) or _is_size(value):
            return value
        if isinstance(value, (list, tuple, range)) and not _is_named_tuple(value) and not _contains_array(value):
            return cut_list(value, path)
        rebuilt = _rebuild(value, convert, path)
        if rebuilt is None and hasattr(value, "__len__"):
            raise DataError(
                f"{path} is a {type(value).__name__}, which has a length, so it may contain one item per sample. Use tensors, "
                "arrays, plain values, and lists, tuples, dicts and dataclasses of them.",
                code="batch-unknown-container",
            )
        return value if rebuilt is None else rebuilt

    def cut_list(value: Any, path: str) -> Any:
        is_column = len(value) == num_samples
        has_columns = any(isinstance(item, (list, tuple)) and len(item) == num_samples for item in value)
        if is_column and has_columns:
            raise DataError(
                f"{path} is a list of {num_samples} lists of {num_samples}, in a batch of {num_samples} samples: either "
                "dimension could count samples. Use a tensor or an array.",
                code="batch-ambiguous-list",
            )
        if is_column:
            return value[part]
        return _rebuild(value, convert, path) if has_columns else value

    if part == slice(0, num_samples):
        return batch
    return convert("batch", batch)


def _is_size(value: Any) -> bool:
    """Returns whether a value is a tuple of plain numbers. It belongs to the batch itself (for
    example an image size): values per sample are in lists or tensors."""
    return type(value) is tuple and all(isinstance(item, (int, float)) for item in value)


def _contains_array(value: Any) -> bool:
    return bool(_arrays(value, ""))
