"""Inspects a PyTorch DataLoader, or the iterable that a script uses instead."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FunctionType
from typing import Any, TypeGuard

from torch.utils.data import DataLoader, DistributedSampler

from lockstep._base.errors import DataError

USUAL_PREFETCH = 2
"""PyTorch's own default for DataLoaders with workers."""


def set_epoch(epoch: int, *objects: object) -> None:
    """Calls ``set_epoch(epoch)`` on each object that has it, as scripts do with samplers."""
    for item in objects:
        setter = getattr(item, "set_epoch", None)
        if callable(setter):
            setter(epoch)


def samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """Returns the samplers of a loader, and the samplers inside them."""
    samplers: list[Any] = []
    for sampler in (loader.sampler, loader.batch_sampler):
        while sampler is not None and not any(sampler is seen for seen in samplers):
            samplers.append(sampler)
            sampler = getattr(sampler, "sampler", None)
    return samplers


def is_torch_loader(batches: object) -> TypeGuard[DataLoader[Any]]:
    """Returns whether ``batches`` is a DataLoader with PyTorch's own ``__iter__``, which a subclass
    may replace."""
    return isinstance(batches, DataLoader) and type(batches).__iter__ is DataLoader.__iter__


def check_batches(batches: Iterable[Any], call: str, passes: str) -> None:
    """Checks that a loader yields all batches, in every pass. ``call`` and ``passes`` are for the
    message: the call that received the loader, and the name of its passes.

    Raises:
        DataError: it has a DistributedSampler, was made by ``resumable``, or can be iterated only
            once.
    """
    if getattr(batches, "is_split_over_ranks", False):
        raise DataError(
            f"{call} received a loader of lockstep.resumable(), which is already split over processes. Pass {call} the "
            "DataLoader itself.",
            code="loader-already-split",
        )
    if not isinstance(batches, DataLoader) and _is_spent_by_a_pass(batches):
        raise DataError(
            f"a {type(batches).__name__} can be read only once, so a second {passes} would be empty. Pass {call} a DataLoader, "
            "a list, or an object whose __iter__ starts over.",
            code="loader-read-once",
        )
    if isinstance(batches, DataLoader) and any(isinstance(s, DistributedSampler) for s in samplers_of(batches)):
        raise DataError(
            "this DataLoader has a DistributedSampler, so its samples are already split over processes. Remove the sampler "
            "(use shuffle=True), and set batch_size to the global batch.",
            code="loader-already-split",
        )


def check_not_split(batches: object) -> None:
    """Checks that accelerate has not prepared a loader, or split its data.

    Raises:
        DataError: accelerate has.
    """
    # A process that has not imported accelerate has prepared nothing with it.
    accelerate = sys.modules.get("accelerate.data_loader")
    names = ("DataLoaderShard", "DataLoaderDispatcher", "BatchSamplerShard", "IterableDatasetShard")
    kinds = tuple(kind for name in names if (kind := getattr(accelerate, name, None)) is not None)
    parts = [batches, getattr(batches, "dataset", None)]
    if isinstance(batches, DataLoader):
        parts += samplers_of(batches)
    for part in parts:
        if isinstance(part, kinds):
            raise DataError(
                f"accelerate has prepared this loader ({type(part).__name__}), so it is already split over processes. Pass "
                "resumable() the original DataLoader, and do not prepare the result.",
                code="loader-already-split",
            )


def _is_spent_by_a_pass(batches: Iterable[Any]) -> bool:
    """Returns whether an object is an iterator that cannot start over: a generator, one of Python's
    own (``iter(batches)``, ``zip``, ``map``), or one whose ``__iter__`` does nothing but ``return
    self``. (One that does more returns to its beginning.)"""
    own = getattr(type(batches), "__iter__", None)
    if isinstance(own, FunctionType):
        return own.__code__.co_code == _return_self.__code__.co_code
    return iter(batches) is batches


def _return_self(self: Any) -> Any:
    return self


def length_of(collection: Any) -> int | None:
    """``len(collection)``; None if it has no length or does not know it."""
    try:
        return len(collection)
    except (TypeError, NotImplementedError):  # PyTorch's samplers raise either
        return None
