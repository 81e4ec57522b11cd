"""Times, sizes and GPUs as Slurm's options take them."""

from __future__ import annotations

import re

_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
ENDLESS = ("INFINITE", "UNLIMITED")


def minutes(text: str) -> float:
    """A time: ``90`` (minutes), ``90:00``, ``1:30:00``, ``2-12`` (days and hours), ``2-12:30``, ``2-12:30:00``.

    Infinity for ``UNLIMITED``, and for 0, by which Slurm means the same.

    Raises:
        ValueError: it is none.
    """
    if text.upper() in ENDLESS:
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, *([days] if dash else []))) or len(parts) > 3:
        raise ValueError(
            f"{text!r} is no time: give minutes, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS or DAYS-HOURS:MINUTES"
        )
    numbers = [int(part) for part in parts]
    if dash:
        hours, mins, secs = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, mins, secs = numbers
    else:
        hours, mins, secs = 0, *(*numbers, 0)[:2]
    return int(days or 0) * 24 * 60 + hours * 60 + mins + secs / 60 or float("inf")


def megabytes(text: str) -> float:
    """A size: ``64G``, ``500M``, or ``64000`` (megabytes). 0 is all that a node has.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text, flags=re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no size: give megabytes, or a number with K, M, G or T behind it")
    return int(match[1]) * _MB[match[2].upper() or "M"]


def gpus(text: str) -> tuple[str | None, int]:
    """GPUs of a node: ``4``, or ``a100:4``; the kind, and how many.

    Raises:
        ValueError: it is none.
    """
    kind, _, number = text.rpartition(":")
    if not number.isdecimal() or int(number) < 1 or (":" in text and not re.fullmatch(r"[\w.-]+", kind)):
        raise ValueError(f"{text!r} is no number of GPUs: give a number of 1 or more, or KIND:NUMBER")
    return kind or None, int(number)
