"""PyTorch's warning of more loader workers than cores, for the workers that are really started.

PyTorch warns when a loader is made. But lockstep reads a stream in one worker at any setting, and
``--workers`` replaces the number of any loader. So the warning is printed when a loader is
prepared."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import IterableDataset

from lockstep._data.torch_loader import is_torch_loader

_WORDS = "This DataLoader will create"


def hold_back_warning() -> None:
    """Suppresses the warning for loaders that are made from now on."""
    warnings.filterwarnings("ignore", _WORDS, UserWarning)


def warn_of_many_workers(loader: Any) -> None:
    """Warns of a loader that is about to be used, if it starts too many workers."""
    check = getattr(loader, "check_worker_number_rationality", None)
    if check is None or (is_torch_loader(loader) and isinstance(loader.dataset, IterableDataset)):
        return
    with warnings.catch_warnings():
        warnings.filters[:] = [each for each in warnings.filters if getattr(each[1], "pattern", each[1]) != _WORDS]  # type: ignore[index]
        check()
