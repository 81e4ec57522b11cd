"""PyTorch's warning of more loader workers than cores, said of those that are started.

PyTorch says it where a loader is made. lockstep reads a stream in one worker whatever its loader
asks for, and ``--workers`` replaces the number of any: so it is said where a loader is prepared.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import IterableDataset

from lockstep._data.torch_loader import is_torch_loader

_WORDS = "This DataLoader will create"


def hold_back_warning() -> None:
    """From now on loaders are made without the warning."""
    warnings.filterwarnings("ignore", _WORDS, UserWarning)


def warn_of_many_workers(loader: Any) -> None:
    """Say it of a loader that is about to be used, if that starts as many workers."""
    check = getattr(loader, "check_worker_number_rationality", None)
    if check is None or (is_torch_loader(loader) and isinstance(loader.dataset, IterableDataset)):
        return
    with warnings.catch_warnings():
        warnings.filters[:] = [each for each in warnings.filters if getattr(each[1], "pattern", each[1]) != _WORDS]  # type: ignore[index]
        check()
