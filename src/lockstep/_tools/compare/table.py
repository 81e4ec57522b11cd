"""A comparison as a table for the terminal. The cells are pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep._base.escape_control import escape_control
from lockstep._events.format import NOT_FINITE
from lockstep._events.measure.split import sentence
from lockstep._tools.compare.comparison import Comparison, RowResult
from lockstep._tools.compare.figures import Figures, Relation
from lockstep._world.machine.sizes import NOTHING, size


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its heading, and its cell in a row that has figures."""

    heading: str
    cell: Callable[[Figures, Relation | None], str] = lambda figures, relation: NOTHING
    of_row: Callable[[RowResult], str] | None = None
    """The cell, if it needs more than the figures of all rounds together."""


def columns(comparison: Comparison) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Returns the columns about speed, and the columns about results."""
    unit, kind = ("GPU", "GPU memory") if comparison.on_gpu else ("CPU", "memory")
    speed = (
        Column(heading="seconds\n/ epoch", cell=lambda figures, _: seconds(figures.epoch_s)),
        Column(heading="samples\n/ s", cell=lambda figures, _: count(figures.samples_per_s)),
        *([Column(heading="95 %\n±", of_row=_spread)] if comparison.rounds > 1 else []),
        Column(heading="speed-\nup", cell=lambda _, relation: f"{relation.speed_up:.2f}×" if relation else NOTHING),
        Column(heading="effi-\nciency", cell=lambda _, relation: percent(relation.efficiency if relation else None)),
        Column(heading=f"{unit}\nbusy", cell=lambda figures, _: _busy(figures)),
        Column(heading=f"peak\n{kind}", cell=lambda figures, _: memory(figures.peak_bytes)),
    )
    answer = (
        Column(heading="final\nloss", cell=lambda figures, _: value(figures.loss, figures.loss_from)),
        Column(heading="minus\nsingle", cell=lambda _, relation: difference(relation, "loss")),
        Column(heading="accu-\nracy", cell=lambda figures, _: value(figures.accuracy, figures.accuracy_from)),
        Column(heading="minus\nsingle", cell=lambda _, relation: difference(relation, "accuracy")),
    )
    return speed, answer


def line(comparison: Comparison, result: RowResult, chosen: Sequence[Column]) -> list[str]:
    """Returns the cells of one row, after method and processes. The first cell of a row without
    figures is its status."""
    if result.figures is None:
        return [result.status, *[""] * (len(chosen) - 1)]
    figures, relation = result.figures, comparison.relation(result)
    return [column.cell(figures, relation) if column.of_row is None else column.of_row(result) for column in chosen]


def _spread(result: RowResult) -> str:
    interval = result.interval
    return NOTHING if interval is None else interval.spread


def _busy(figures: Figures) -> str:
    """Formats the mean utilization, and the range over several GPUs."""
    read = [value for value in figures.gpu_utilisation_by_rank or () if value is not None]
    of_each = f" ({min(read):.0f} to {max(read):.0f})" if figures.device != "cpu" and len(read) > 1 else ""
    return percent(figures.utilisation) + of_each


def show(comparison: Comparison, console: Console) -> None:
    """Print the table, a sentence a row, why rows have no figures, and the notes."""
    speed, answer = columns(comparison)
    whole = _table(comparison, (*speed, *answer))
    if console.measure(whole, options=console.options.update(width=1000)).minimum <= console.width:
        console.print(whole)
    else:  # cut cells would tell less than two tables
        console.print(_table(comparison, speed), _table(comparison, answer), sep="")
    for result in comparison.rows:
        said = sentence_of(comparison, result)
        if said is not None:
            console.print(Text(escape_control(f"{result.row.label}: {said}")), soft_wrap=False)
    alike: dict[tuple[str, str], list[RowResult]] = {}
    for result in comparison.rows:
        if result.reason is not None:
            alike.setdefault((result.status, result.reason), []).append(result)
    for (status, reason), results in alike.items():
        which, log = ", ".join(result.row.label for result in results), results[0].decisive_run.log
        where = f" ({comparison.directory / log})" if log else ""
        console.print(Text(escape_control(f"{which} {status}: {reason}{where}"), style="red"), soft_wrap=True)
    for note in comparison.notes:
        console.print(Text(escape_control(f"Note: {note}"), style="yellow"))


def _table(comparison: Comparison, chosen: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("method", no_wrap=True)
    table.add_column("pro-\ncesses", justify="right")
    for column in chosen:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for result in comparison.rows:
        style = None if result.figures is not None else "dim"
        cells = line(comparison, result, chosen)
        table.add_row(result.row.method.name, str(result.row.num_processes), *cells, style=style)
    return table


def seconds(number: float) -> str:
    """Formats a duration with three significant digits and no exponent: an epoch may take a
    millisecond or a day."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.4f}"


def count(number: float) -> str:
    """Formats a rate."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def percent(number: float | None) -> str:
    """Formats a share that is already in per cent."""
    return NOTHING if number is None else f"{number:.0f} %"


def memory(num_bytes: int | None) -> str:
    """Formats a size."""
    return NOTHING if num_bytes is None else size(num_bytes)


def value(number: float | None, source: str | None) -> str:
    """Formats a loss or an accuracy, and where it comes from (None: there is none)."""
    if number is None:
        return NOTHING if source is None else NOT_FINITE
    return f"{number:.4f}"


def difference(relation: Relation | None, name: str) -> str:
    """Formats a difference: ``0`` if and only if the values are bit-identical."""
    number = None if relation is None else getattr(relation, f"{name}_difference")
    return NOTHING if number is None else "0" if number == 0 else f"{number:+.1e}"


def sentence_of(comparison: Comparison, result: RowResult) -> str | None:
    """How fast a row is, whether that is more than noise, and what limits it; None without
    figures."""
    figures = result.figures
    if figures is None:
        return None
    parts = [_speed(comparison, result)]
    if figures.shares:
        parts.append(sentence(figures.shares))
    return "; ".join(parts)


def _speed(comparison: Comparison, result: RowResult) -> str:
    baseline, relation = comparison.baseline, comparison.relation(result)
    if baseline is None or relation is None:
        return "no baseline to compare its speed with"
    if result is baseline:
        spread = "" if result.interval is None else f", measured to ±{result.interval.spread}"
        return f"the baseline of the other rows{spread}"
    label, interval, speed_up = baseline.row.label, relation.interval, relation.speed_up
    if interval is None:
        return f"{speed_up:.2f} times as fast as {label}, measured once (--rounds 3 shows how much of that is noise)"
    reach = f"95 % interval {interval.low:.2f} to {interval.high:.2f}"
    if relation.is_noise:
        return f"no difference from {label} beyond noise ({reach} times as fast)"
    return f"{speed_up:.2f} times as fast as {label} ({reach})"
