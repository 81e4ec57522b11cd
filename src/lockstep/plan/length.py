"""The length of collections that may have none."""

from __future__ import annotations

from typing import Any


def length_of(collection: Any) -> int | None:
    """``len(collection)``; None if it has no length or does not know it."""
    try:
        return len(collection)
    except (TypeError, NotImplementedError):  # PyTorch's samplers raise either
        return None
