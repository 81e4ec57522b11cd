"""Values of single shards, or of single evaluation batches, on every process: for example
predictions, instead of their averages."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor

from lockstep._base.errors import ConfigError
from lockstep._data.batches import map_leaves, map_tensors
from lockstep._world.comm.collectives import Collectives

Shared = tuple[tuple[int, ...], Any]
"""A place, by which values are ordered, and the value that was shared there."""


_UNCHANGING = (int, float, complex, bool, str, bytes, type(None))
_REFUSED = (pickle.PicklingError, AttributeError, TypeError)
"""What pickle raises for a lambda, an object of a local class, or a generator."""


def keep(value: Any, call: str = "batch.share()") -> Any:
    """Returns a copy of a value at the time when the script shares it, with tensors on the CPU. The
    script may overwrite the value for the next shard, and how many shards follow on this process
    depends on the number of processes.

    Raises:
        ConfigError: a part of the value cannot be pickled. (Checked here, it is also refused on one
            process.)
    """
    return map_leaves(lambda leaf: _kept(leaf, call), value)


def gather(mine: Iterable[Shared], collectives: Collectives, device: torch.device) -> list[Shared]:
    """Returns what all ranks have shared, in the order of the places, with tensors on ``device``.
    Every rank must call it, and it blocks until all have.

    Raises:
        ConfigError: a value of this rank cannot be pickled. (The other ranks raise an error after
            the timeout.)
    """
    try:
        everyone = collectives.all_gather_object(list(mine))
    except _REFUSED as error:  # a container of a local class
        _refuse(error, "batch.share()")
    in_order = sorted((record for of_rank in everyone for record in of_rank), key=lambda record: record[0])
    return [(place, map_tensors(lambda tensor: tensor.to(device), value)) for place, value in in_order]


def _kept(leaf: Any, call: str) -> Any:
    if isinstance(leaf, Tensor):
        # A copy: a pickled view would send its whole base.
        return leaf.detach().to("cpu", copy=True)
    if type(leaf) in _UNCHANGING:
        return leaf
    try:
        return pickle.loads(pickle.dumps(leaf))
    except _REFUSED as error:
        _refuse(error, call)


def _refuse(error: Exception, call: str) -> NoReturn:
    raise ConfigError(
        f"{call}: cannot send a value to the other processes ({error}). Pass tensors and plain values, or lists, tuples "
        "and dicts of them.",
        code="value-not-picklable",
    ) from error
