"""Whether a rank waits for its loader's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.journal.measure.split import LOADING

_LOADER = "/torch/utils/data/dataloader.py"
_WAITING = ("_try_get_data", "_get_data", "_shutdown_workers")


def waits_for_loader(stack: Sequence[Sequence[Any]]) -> bool:
    """Whether a thread with this stack waits for loader workers."""
    return any(str(file).endswith(_LOADER) and name in _WAITING for file, _, name in stack)


def is_loading(stack: Sequence[Sequence[Any]], doing: Mapping[str, Any]) -> bool:
    """Whether a thread with this stack waits for its next batch, or makes it.

    ``doing``: what else is known of it, as in its record.
    """
    return waits_for_loader(stack) or doing.get("activity") == LOADING
