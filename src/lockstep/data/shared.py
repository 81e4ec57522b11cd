"""Values of single shards, or of single evaluation batches, on every process: predictions, rather than their averages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lockstep.base.errors import ConfigError
from lockstep.data.batches import map_tensors
from lockstep.world.comm.collectives import Collectives

Shared = tuple[tuple[int, ...], Any]
"""A place, by which values are ordered, and the value that was shared there."""


def keep(value: Any) -> Any:
    """A copy of a value as it is when the script shares it, on the CPU: the script may overwrite its tensors, and pickling a
    view would send its whole base."""
    return map_tensors(_detached, value)


def gather(mine: Iterable[Shared], collectives: Collectives, device: torch.device) -> list[Shared]:
    """What all ranks have shared, in the order of the places, on every rank, with tensors on ``device``. Every rank must call
    it; it blocks until all have.

    Raises:
        ConfigError: a value of this rank cannot be pickled. (The other ranks raise an error after the timeout.)
    """
    try:
        everyone = collectives.all_gather_object(list(mine))
    except (AttributeError, TypeError) as error:  # pickle's, for a lambda or a generator
        raise ConfigError(
            f"batch.share(): the value cannot be sent to the other processes ({error}). Share tensors and plain values, or "
            "lists, tuples and dicts of them."
        ) from error
    in_order = sorted((record for of_rank in everyone for record in of_rank), key=lambda record: record[0])
    return [(place, map_tensors(lambda tensor: tensor.to(device), value)) for place, value in in_order]


def _detached(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
