"""Sizes, counts, ranks and durations in readable form."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "–"
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SPANS = ((86400 * 2, 86400, "days"), (5400, 3600, "h"), (90, 60, "min"), (0, 1, "s"))


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


def name_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``; ``ranks 0 and 2 to 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    names = [name for span in spans for name in ([f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span))]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def span(seconds: float | None) -> str:
    """A duration: ``8 s``, ``12 min``, ``5.5 h``, ``3 days``."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)  # clocks of two machines may differ
    _, unit_s, unit = next(entry for entry in _SPANS if seconds >= entry[0])
    number = seconds / unit_s
    return f"{number:.1f} {unit}" if unit == "h" and number < 10 else f"{number:.0f} {unit}"
