"""Sizes and counts in readable form."""

from __future__ import annotations

_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(num_bytes: float) -> str:
    """A size: ``312 B``, ``3.6 kB``, ``1.24 GB``."""
    for least, unit in _SIZES:
        if num_bytes >= least:
            number = num_bytes / least
            return (
                f"{number:.2f} {unit}" if unit == "GB" else f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
            )
    return f"{num_bytes:.0f} B"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A count: ``1 file``, ``2,000 files``; ``plural`` where that is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
