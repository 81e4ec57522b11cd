"""Confidence intervals of repeated measurements. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The 0.975 quantiles of Student's t with 1, 2, ... 30 degrees of freedom, from the NIST/SEMATECH
# e-Handbook of Statistical Methods, section 1.3.6.7.2.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

_COARSE = 100
"""The largest half width, in per cent, that is shown with digits. A coarser measurement is unknown
in effect."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A 95 % confidence interval of a positive quantity."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """How far it reaches to either side, in per cent of its (geometric) middle."""
        return 100 * (math.sqrt(self.high / self.low) - 1)

    @property
    def spread(self) -> str:
        """The ``half_width`` as text."""
        return f"{self.half_width:.1f} %" if self.half_width < _COARSE else f"over {_COARSE} %"

    def has(self, value: float) -> bool:
        """Whether the interval contains this value."""
        return self.low <= value <= self.high


def middle(values: Sequence[float]) -> float:
    """The geometric mean, so that a ratio of two middles is the middle of their ratios."""
    return values[0] if len(values) == 1 else statistics.geometric_mean(values)


def interval_of(values: Sequence[float]) -> Interval | None:
    """Student's t interval of the geometric mean: speeds vary in proportion, so that their
    logarithms are closer to normal.

    Args:
        values: positive; of independent measurements. Two rows are compared by the ratios of their
            values within each round, so that what is slower or faster for a whole round cancels
            out.

    Returns:
        None for fewer than two values, which say nothing about noise.
    """
    if len(values) < 2:
        return None
    logarithms = [math.log(value) for value in values]
    # With more degrees of freedom than the table has, the quantile is smaller: the interval is a
    # little wide.
    quantile = _T[min(len(values) - 1, len(_T)) - 1]
    reach = quantile * statistics.stdev(logarithms) / math.sqrt(len(values))
    mean = statistics.fmean(logarithms)
    return Interval(low=math.exp(mean - reach), high=math.exp(mean + reach))
