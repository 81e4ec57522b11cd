"""Parsing times, sizes and GPUs in the form of Slurm's options."""

from __future__ import annotations

import re

_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
ENDLESS = ("INFINITE", "UNLIMITED")


def minutes(text: str) -> float:
    """Parse a time: ``90`` (minutes), ``90:00``, ``1:30:00``, ``2-12`` (days and hours), ``2-12:30``, ``2-12:30:00``.

    Returns minutes; infinity for ``UNLIMITED``, and for 0, which means the same in Slurm.

    Raises:
        ValueError: it has another form.
    """
    if text.upper() in ENDLESS:
        return float("inf")
    days, dash, time = text.rpartition("-")
    parts = time.split(":")
    if not all(part.isdecimal() for part in (*parts, *([days] if dash else []))) or len(parts) > 3:
        raise ValueError(
            f"{text!r} is not a time: give minutes, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS or DAYS-HOURS:MINUTES"
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
    """Parse a size: ``64G``, ``500M``, or ``64000`` (megabytes); 0 means all memory of a node. Returns megabytes.

    Raises:
        ValueError: it has another form.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text, flags=re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size: give megabytes, or a number followed by K, M, G or T")
    return int(match[1]) * _MB[match[2].upper() or "M"]


def gpus(text: str) -> tuple[str | None, int]:
    """Parse the GPUs of a node: ``4``, or ``a100:4``. Returns their kind, if given, and their number.

    Raises:
        ValueError: it has another form.
    """
    kind, _, number = text.rpartition(":")
    if not number.isdecimal() or int(number) < 1 or (":" in text and not re.fullmatch(r"[\w.-]+", kind)):
        raise ValueError(f"{text!r} is not a number of GPUs: give a number of 1 or more, or KIND:NUMBER")
    return kind or None, int(number)
