"""Times and numbers of steps, as people write them: between checkpoints, and the steps to profile."""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

from lockstep.base.errors import ConfigError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def check_interval(value: Any) -> int | str:
    """``checkpoint_every`` in canonical form, so that settings can be compared and passed on as text: a number of steps, a
    number of seconds followed by ``s``, or ``off``.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, datetime.timedelta):
        value = f"{value.total_seconds():.15g}s"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if value == "off":
        return "off"
    if isinstance(value, str):
        if value.isdecimal() and int(value) >= 1:
            return int(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)([smhd])", value)
        seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
        if 0 < seconds < math.inf:
            return f"{seconds:.15g}s"
    raise ConfigError(
        f"checkpoint_every={value!r}: give a number of steps (1 or more), a time (a timedelta, or a text such as 30s, 10m, "
        "2h), or 'off'"
    )
