"""The contents of an attribute: items of lists and mappings, and attributes of plain objects."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, MutableSequence
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

MOST = 256
"""The largest number of items of a container that are compared one by one. A larger container (a
vocabulary, a dataset) is compared by size only, to keep steps fast."""
_OTHERS = (nn.Module, Tensor, Trainer, Callback, LightningDataModule, Optimizer, DataLoader, Dataset)
_NO_OBJECTS = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def is_plain_object(value: Any) -> bool:
    """Returns whether a value is an object of one of the script's classes, such as a running
    average."""
    return hasattr(value, "__dict__") and not isinstance(value, (*_OTHERS, *_NO_OBJECTS, Mapping, MutableSequence))


def items_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the items of a container that is not too large, or the attributes of a plain object,
    each after its suffix in the script, such as ``[3]`` or ``.count``."""
    if isinstance(value, Mapping):
        items = [(f"[{key!r}]", item) for key, item in value.items()] if len(value) <= MOST else []
    elif isinstance(value, MutableSequence | tuple):
        items = [(f"[{number}]", item) for number, item in enumerate(value)] if len(value) <= MOST else []
    elif is_plain_object(value):
        items = [(f".{name}", item) for name, item in vars(value).items()]
    else:
        items = []
    yield from items
