"""The three panels in which a picture shows a comparison: a bar a row. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockstep.tools.compare import table
from lockstep.tools.compare.comparison import Comparison
from lockstep.tools.compare.figures import Figures


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One quantity."""

    title: str
    unit: str
    length: Callable[[Figures], float | None]
    """Of a row's bar, in the unit; None: not known."""
    label: Callable[[Figures], str]
    """At the end of the bar."""


def panels(comparison: Comparison) -> tuple[Panel, Panel, Panel]:
    """Time per epoch, utilisation, memory."""
    on_gpu = comparison.on_gpu
    baseline = comparison.baseline.figures if comparison.baseline is not None else None

    def time(figures: Figures) -> str:
        speed_up = "" if baseline is None else f" ({figures.samples_per_s / baseline.samples_per_s:.2f}×)"
        return f"{table.seconds(figures.epoch_s)}{speed_up}"

    return (
        Panel(
            title="Time per epoch (less is better)",
            unit="s" if baseline is None else "s (in brackets: speed-up)",
            length=lambda figures: figures.epoch_s,
            label=time,
        ),
        Panel(
            title=f"{'GPU' if on_gpu else 'CPU'} utilisation",
            unit=f"% of {'GPU' if on_gpu else 'all cores'}",
            length=lambda figures: figures.utilisation,
            label=lambda figures: table.percent(figures.utilisation),
        ),
        Panel(
            title=f"Peak {'GPU ' if on_gpu else ''}memory, all processes",
            unit="GB",
            length=lambda figures: None if figures.peak_bytes is None else figures.peak_bytes / 1e9,
            label=lambda figures: table.size(figures.peak_bytes),
        ),
    )
