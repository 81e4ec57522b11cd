"""Inspecting a PyTorch DataLoader, or what a script uses in its place."""

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
    """Call ``set_epoch(epoch)`` on each object that has it, as scripts do with samplers."""
    for item in objects:
        setter = getattr(item, "set_epoch", None)
        if callable(setter):
            setter(epoch)


def samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """The samplers of a loader, and those that they wrap."""
    samplers: list[Any] = []
    for sampler in (loader.sampler, loader.batch_sampler):
        while sampler is not None and not any(sampler is seen for seen in samplers):
            samplers.append(sampler)
            sampler = getattr(sampler, "sampler", None)
    return samplers


def is_torch_loader(batches: object) -> TypeGuard[DataLoader[Any]]:
    """Whether ``batches`` is a DataLoader with PyTorch's own ``__iter__``, which a subclass may
    replace."""
    return isinstance(batches, DataLoader) and type(batches).__iter__ is DataLoader.__iter__


def check_batches(batches: Iterable[Any], call: str, passes: str) -> None:
    """Check that a loader yields all batches, in every pass. ``call`` and ``passes`` are for the
    message: what it was given to, and what that does with it.

    Raises:
        DataError: it has a DistributedSampler, was made by ``resumable``, or can be iterated only
            once.
    """
    if getattr(batches, "is_split_over_ranks", False):
        raise DataError(
            f"{call} received a loader of lockstep.resumable(), which leaves each process only its own samples: they would be "
            f"split again. Give {call} the DataLoader itself"
        )
    if not isinstance(batches, DataLoader) and _is_spent_by_a_pass(batches):
        raise DataError(
            f"a {type(batches).__name__} can be read only once, so a second {passes} would be empty: give {call} a DataLoader, "
            "a list, or an object whose __iter__ starts over"
        )
    if isinstance(batches, DataLoader) and any(isinstance(s, DistributedSampler) for s in samplers_of(batches)):
        raise DataError(
            "this DataLoader has a DistributedSampler, which leaves each process only its own samples, and lockstep "
            "would split those again: leave the sampler out (use shuffle=True), and set batch_size to the global batch"
        )


def check_not_split(batches: object) -> None:
    """Check that accelerate has not prepared a loader, or split what it reads.

    Raises:
        DataError: it has.
    """
    # whoever has not imported it has prepared nothing
    accelerate = sys.modules.get("accelerate.data_loader")
    names = ("DataLoaderShard", "DataLoaderDispatcher", "BatchSamplerShard", "IterableDatasetShard")
    kinds = tuple(kind for name in names if (kind := getattr(accelerate, name, None)) is not None)
    parts = [batches, getattr(batches, "dataset", None)]
    if isinstance(batches, DataLoader):
        parts += samplers_of(batches)
    for part in parts:
        if isinstance(part, kinds):
            raise DataError(
                f"accelerate has prepared this loader ({type(part).__name__}): each process has only its own samples, and "
                "these would be split again. Give resumable() the DataLoader as it was made, and do not prepare the result"
            )


def _is_spent_by_a_pass(batches: Iterable[Any]) -> bool:
    """Whether it is an iterator that cannot start over: a generator, one of Python's own
    (``iter(batches)``, ``zip``, ``map``), or one whose ``__iter__`` does nothing but ``return
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
