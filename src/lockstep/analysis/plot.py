"""A comparison as a picture with the article's three panels, time per epoch, utilisation, memory, and how speed scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.analysis import table
from lockstep.analysis.comparison import Comparison, RowResult
from lockstep.analysis.figures import Figures
from lockstep.analysis.scaling import Point, scaling_of
from lockstep.machine.sizes import counted

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

    measured = [result.figures for result in comparison.rows if result.figures is not None]
    on_gpu = any(figures.device == "cuda" for figures in measured)
    scaling, bars_height = scaling_of(comparison), 1.9 + 0.42 * len(comparison.rows)
    figure = Figure(figsize=(14, bars_height + (_SCALING_HEIGHT if scaling else 0)), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    upper: Any = figure
    if scaling:
        parts: Any = figure.subfigures(2, 1, height_ratios=(bars_height, _SCALING_HEIGHT))
        upper, lower = parts
        _draw_scaling(lower.subplots(), scaling)
    time, utilisation, memory = upper.subplots(1, 3, sharey=True, width_ratios=(1.35, 1, 1))
    _bars(time, comparison, lambda figures: figures.epoch_s, lambda figures: _time_label(comparison, figures))
    _bars(utilisation, comparison, lambda figures: figures.utilisation, lambda figures: table.percent(figures.utilisation))
    _bars(memory, comparison, _gigabytes, lambda figures: table.size(figures.peak_bytes))
    unit = "GPU" if on_gpu else "all cores"
    time.set(title="Time per epoch (less is better)", xlabel="s (in brackets: speed-up)")
    utilisation.set(title=f"{'GPU' if on_gpu else 'CPU'} utilisation", xlabel=f"% of {unit}")
    utilisation.set_xlim(0, 122)
    utilisation.set_xticks(range(0, 101, 20))
    memory.set(title=f"Peak {'GPU ' if on_gpu else ''}memory, all processes", xlabel="GB")
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
        speed_ups = [point.speed_up for point in points]
        intervals = [point.interval for point in points]
        below = [
            0.0 if interval is None else point.speed_up - interval.low
            for point, interval in zip(points, intervals, strict=True)
        ]
        above = [
            0.0 if interval is None else interval.high - point.speed_up
            for point, interval in zip(points, intervals, strict=True)
        ]
        axes.errorbar(
            [point.num_processes for point in points],
            speed_ups,
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
    measured = [result.figures for result in comparison.rows if result.figures is not None]
    gpus = {figures.device_name for figures in measured if figures.device == "cuda" and figures.device_name}
    device = ", ".join(sorted(gpus)) or comparison.machine.cpu_name
    shards, threads = counted(comparison.shards, "shard"), counted(comparison.threads, "thread")
    return (
        f"{Path(comparison.task.script).name} · V = {shards}, {threads} a process · "
        f"{device}, {counted(comparison.machine.num_cores, 'core')}"
    )


def _gigabytes(figures: Figures) -> float | None:
    return None if figures.peak_bytes is None else figures.peak_bytes / 1e9


def _time_label(comparison: Comparison, figures: Figures) -> str:
    baseline = comparison.baseline
    if baseline is None or baseline.figures is None:
        return table.seconds(figures.epoch_s)
    return f"{table.seconds(figures.epoch_s)} ({figures.samples_per_s / baseline.figures.samples_per_s:.2f}×)"


def _bars(
    axes: Any, comparison: Comparison, length_of: Callable[[Figures], float | None], label_of: Callable[[Figures], str]
) -> None:
    """One panel: a bar a row with its figure at the end; what became of a row that has none."""
    lengths = [None if result.figures is None else length_of(result.figures) for result in comparison.rows]
    for index, (result, length) in enumerate(zip(comparison.rows, lengths, strict=True)):
        if length is None or result.figures is None:
            axes.text(0, index, f" {_missing(result)}", va="center", color="#666666", style="italic", fontsize=9)
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
        axes.text(length, index, f" {label_of(result.figures)}", va="center", fontsize=9)
    longest = max((length for length in lengths if length is not None), default=1.0)
    axes.set_xlim(0, 1.32 * (longest or 1.0))  # room for the figure beside the longest bar
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _missing(result: RowResult) -> str:
    return result.status if result.figures is None else "not known"
