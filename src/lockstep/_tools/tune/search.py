"""Which numbers of loader workers to try, and which is best. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

_DOUBLED = (2, 4, 8, 16, 32)
_NOTABLE = 1.05
"""More workers are tried as long as steps get faster by this factor."""
_ALIKE = 1.02
"""Steps within this factor are as fast."""
_CLEAR = 1.03
_WAITS = 0.05
"""A loader for which steps wait less than this share of their time keeps up."""


def keeps_up(step_s: float, wait_s: float) -> bool:
    """Whether another loader could hardly make steps faster. ``wait_s``: the part of a step spent
    waiting for the loader."""
    return wait_s < _WAITS * step_s


def next_to_try(tried: Mapping[int, float]) -> int | None:
    """The number of workers to try next: twice as many as long as that helps, then between and
    beyond; None: none.

    Args:
        tried: the seconds of a step, by number of workers; with the script's own.
    """
    for number in _DOUBLED:
        if number not in tried:
            return number
        fewer_s = min((step_s for fewer, step_s in tried.items() if fewer < number), default=math.inf)
        if tried[number] * _NOTABLE > fewer_s:
            break
    best = min((number for number in tried if number in (0, *_DOUBLED)), key=tried.__getitem__)
    between = (best * 3 // 2, best * 3 // 4) if best else (1,)
    return next((number for number in between if number not in tried), None)


def best_of(tried: Mapping[int, float]) -> int:
    """The number of workers with the fastest steps; among those about as fast, the smallest."""
    least_s = min(tried.values())
    return min(number for number, step_s in tried.items() if step_s <= _ALIKE * least_s)


def is_clear(*speedups: float) -> bool:
    """Whether a setting is faster than the present one by more than the noise of these
    comparisons."""
    return min(speedups) > 1 and math.prod(speedups) >= _CLEAR ** len(speedups)
