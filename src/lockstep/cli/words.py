"""Times in readable form. (Importing those of ``analysis`` takes a tenth of a second.)"""

from __future__ import annotations

NOTHING = "–"
_SPANS = ((86400 * 2, 86400, "days"), (5400, 3600, "h"), (90, 60, "min"), (0, 1, "s"))


def span(seconds: float | None) -> str:
    """A duration: ``8 s``, ``12 min``, ``5.5 h``, ``3 days``."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)  # clocks of two machines may differ
    _, unit_s, unit = next(entry for entry in _SPANS if seconds >= entry[0])
    number = seconds / unit_s
    return f"{number:.1f} {unit}" if unit == "h" and number < 10 else f"{number:.0f} {unit}"
