"""A comparison as a picture with the article's three panels, time per epoch, utilisation, memory, and how speed scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.tools.compare.comparison import Comparison
from lockstep.tools.compare.panels import Panel, panels
from lockstep.tools.compare.scaling import Point, scaling_of
from lockstep.world.machine.sizes import counted

FILE_NAME = "comparison.png"
_SCALING_HEIGHT = 3.6

# Okabe and Ito's colours, told apart with any kind of colour vision. Precision is hatching, not colour, so that the
# picture also survives black-and-white print.
_COLOURS = {"single": "#0072B2", "ddp": "#E69F00", "exact": "#CC79A7"}
_OTHER = "#009E73"
_HATCHES = {
    "32-true": "",
    "bf16-mixed": "///",
    "bf16-true": "//////",
    "16-mixed": "...",
    "16-master": "xxx",
    "16-true": "......",
}


def draw(comparison: Comparison) -> Path:
    """Draw ``comparison.png`` beside ``results.json``.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    # Not pyplot: it would look for a display, and keep the figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scaling, bars_height = scaling_of(comparison), 1.9 + 0.42 * len(comparison.rows)
    figure = Figure(figsize=(14, bars_height + (_SCALING_HEIGHT if scaling else 0)), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    upper: Any = figure
    if scaling:
        parts: Any = figure.subfigures(2, 1, height_ratios=(bars_height, _SCALING_HEIGHT))
        upper, lower = parts
        _draw_scaling(lower.subplots(), scaling)
    axes = upper.subplots(1, 3, sharey=True, width_ratios=(1.35, 1, 1))
    for axis, panel in zip(axes, panels(comparison), strict=True):
        _bars(axis, comparison, panel)
    time, utilisation, _ = axes
    utilisation.set_xlim(0, 122)
    utilisation.set_xticks(range(0, 101, 20))
    time.set_yticks(range(len(comparison.rows)), [result.row.label for result in comparison.rows])
    time.set_ylim(len(comparison.rows) - 0.4, -0.6)  # first row on top, as in the table; the axis is shared
    figure.suptitle(_title(comparison), fontsize=11)
    path = comparison.directory / FILE_NAME
    figure.savefig(path)
    return path


def _draw_scaling(axes: Any, scaling: Mapping[str, Sequence[Point]]) -> None:
    numbers = sorted({point.num_processes for points in scaling.values() for point in points})
    axes.plot(numbers, numbers, color="#999999", linestyle="--", label="N times as fast")
    for name, points in scaling.items():
        below = [point.speed_up - point.interval.low if point.interval else 0.0 for point in points]
        above = [point.interval.high - point.speed_up if point.interval else 0.0 for point in points]
        axes.errorbar(
            [point.num_processes for point in points],
            [point.speed_up for point in points],
            yerr=(below, above),
            label=name,
            marker="o",
            capsize=3,
            color=_COLOURS.get(name),
        )
    axes.set(title="Speed-up over one process (bars: 95 % interval)", xlabel="processes")
    axes.set_xticks(numbers)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _title(comparison: Comparison) -> str:
    gpus = {figures.device_name for _, figures in comparison.measured if figures.device == "cuda" and figures.device_name}
    device = ", ".join(sorted(gpus)) or comparison.machine.cpu_name
    shards, threads = counted(comparison.shards, "shard"), counted(comparison.threads, "thread")
    return (
        f"{Path(comparison.task.script).name} · V = {shards}, {threads} a process · "
        f"{device}, {counted(comparison.machine.num_cores, 'core')}"
    )


def _bars(axes: Any, comparison: Comparison, panel: Panel) -> None:
    """A bar a row with its figure at the end; what became of a row that has none."""
    axes.set(title=panel.title, xlabel=panel.unit)
    longest = 0.0
    for index, result in enumerate(comparison.rows):
        figures = result.figures
        length = None if figures is None else panel.length(figures)
        if figures is None or length is None:
            missing = result.status if figures is None else "not known"
            axes.text(0, index, f" {missing}", va="center", color="#666666", style="italic", fontsize=9)
            continue
        axes.barh(
            index,
            length,
            height=0.68,
            color=_COLOURS.get(result.row.method.strategy, _OTHER),
            hatch=_HATCHES[result.row.method.precision],
            edgecolor="white",
            linewidth=0,
        )
        axes.text(length, index, f" {panel.label(figures)}", va="center", fontsize=9)
        longest = max(longest, length)
    axes.set_xlim(0, 1.32 * (longest or 1.0))  # room for the figure beside the longest bar
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
