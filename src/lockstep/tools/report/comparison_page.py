"""The report on a comparison. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lockstep.journal.measure.split import PARTS
from lockstep.tools.compare import table
from lockstep.tools.compare.comparison import Comparison, RowResult
from lockstep.tools.compare.figures import Figures
from lockstep.tools.compare.sentences import sentence_of
from lockstep.tools.compare.splits import splits_of
from lockstep.tools.report import chart, training
from lockstep.tools.report.chart import Bars, Lines, Series, Table
from lockstep.tools.report.html import Page, Section
from lockstep.tools.report.study import completeness, machine_facts
from lockstep.tools.report.thin import Curve, Point

Measured = tuple[RowResult, Figures]

_TONES = ("single", "ddp", "exact")
_NUM_HUES = 8


def comparison_page(comparison: Comparison, histories: Mapping[int, training.Events], version: str) -> Page:
    """The page of a comparison.

    Args:
        comparison: what was measured.
        histories: of the rows' runs, by the row's number, as far as they are there.
        version: of this lockstep.
    """
    measured = comparison.measured
    failed = [result for result in comparison.rows if result.status not in ("ok", "not run")]
    sections = (
        Section(title="Side by side", pictures=[*_panels(comparison), *_scaling(comparison)]),
        Section(title="Table", tables=[_table(comparison)], text=table.legend(comparison), remarks=_sentences(comparison)),
        Section(title="Where the time went", pictures=_splits(comparison, histories)),
        Section(title="What was learned", pictures=_curves(comparison, histories)),
        Section(
            title="What did not run",
            remarks=[f"{result.row.label}: {result.status}: {result.reason}" for result in comparison.rows if result.reason],
            quotes=[
                (f"{result.row.label}, {result.decisive_run.log}", result.decisive_run.error)
                for result in comparison.rows
                if result.decisive_run.error
            ],
        ),
        Section(title="Settings and surroundings", facts=machine_facts(comparison), tables=[_commands(comparison)]),
    )
    return Page(
        kind="comparison",
        name=Path(str(comparison.task.script)).name,
        state=completeness(len(comparison.rows) - len(measured), "row", comparison.is_interrupted),
        tone="good" if len(measured) == len(comparison.rows) else "warn" if measured and not failed else "bad",
        command=shlex.join(comparison.task.command),
        summary=_summary(comparison),
        tiles=tuple(_tiles(comparison)),
        sections=sections,
        warnings=comparison.notes,
        place=str(comparison.directory.absolute()),
        version=version,
    )


def _fastest(measured: Sequence[Measured]) -> Measured | None:
    return max(measured, key=lambda pair: pair[1].samples_per_s, default=None)


def _summary(comparison: Comparison) -> str:
    fastest, baseline = _fastest(comparison.measured), comparison.baseline
    if fastest is None:
        return "No row has figures."
    best, figures = fastest
    pace = f"{best.row.label}, with {table.count(figures.samples_per_s)} samples/s"
    sentence = f"Fastest: {pace}"
    if baseline is None:
        return f"{sentence}."
    relations = {
        result.row.number: relation
        for result, _ in comparison.measured
        if result is not baseline and (relation := comparison.relation(result)) is not None
    }
    if relation := relations.get(best.row.number):
        sentence += f", {relation.speed_up:.2f} times that of {baseline.row.label}"
        if relation.is_noise:
            sentence = f"No row is faster than {baseline.row.label} beyond noise; the fastest is {pace}"
    if relations:
        same = sum(relation.loss_difference == 0 for relation in relations.values())
        sentence += f". {same} of {len(relations)} other rows ended with the loss of {baseline.row.label} to the last bit"
    return f"{sentence}."


def _tiles(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    fastest, baseline = _fastest(comparison.measured), comparison.baseline
    yield "rows", str(len(comparison.rows)), f"{len(comparison.measured)} with figures"
    if fastest is not None:
        best, figures = fastest
        yield "fastest", table.count(figures.samples_per_s), f"samples/s, {best.row.label}"
    if baseline is not None and baseline.figures is not None:
        yield "baseline", table.count(baseline.figures.samples_per_s), f"samples/s, {baseline.row.label}"
        yield "final loss", table.value(baseline.figures.loss), f"of {baseline.row.label}"
    yield "shards", str(comparison.shards), f"threads a process: {comparison.threads}"


def _table(comparison: Comparison) -> Table:
    chosen = [column for group in table.columns(comparison) for column in group]
    headings = ["method", "processes", *(_in_one_line(column.heading) for column in chosen)]
    rows = [
        [result.row.method.name, str(result.row.num_processes), *table.line(comparison, result, chosen)]
        for result in comparison.rows
    ]
    return Table(
        headings=headings,
        rows=rows,
        numbers=frozenset(range(1, len(headings))),
        tones=["" if result.figures is not None else "dim" for result in comparison.rows],
    )


def _in_one_line(heading: str) -> str:
    return heading.replace("-\n", "").replace("\n", " ")


def _panels(comparison: Comparison) -> list[Bars]:
    """The article's three: time per epoch, utilisation, memory; a bar a row."""
    baseline = comparison.baseline.figures if comparison.baseline is not None else None
    unit, gpu = ("GPU", "GPU ") if comparison.on_gpu else ("CPU", "")

    def time(figures: Figures) -> str:
        speed_up = "" if baseline is None else f" ({figures.samples_per_s / baseline.samples_per_s:.2f}×)"
        return f"{table.seconds(figures.epoch_s)}{speed_up}"

    panels: tuple[tuple[str, str, Callable[[Figures], float | None], Callable[[Figures], str]], ...] = (
        ("Time per epoch (less is better)", "s", lambda figures: figures.epoch_s, time),
        (
            f"{unit} utilisation",
            "%",
            lambda figures: figures.utilisation,
            lambda figures: table.percent(figures.utilisation),
        ),
        (
            f"Peak {gpu}memory, all processes",
            "bytes",
            lambda figures: figures.peak_bytes,
            lambda figures: table.memory(figures.peak_bytes),
        ),
    )
    drawn = []
    for title, measure, length, label in panels:
        rows = [
            (result.row.label, result.status, None, "")
            if (figures := result.figures) is None
            else (result.row.label, label(figures), length(figures), _tone(result))
            for result in comparison.rows
        ]
        drawn.append(chart.bars(title, rows, unit=measure))
    return [picture for picture in drawn if picture is not None]


def _tone(result: RowResult) -> str:
    strategy = result.row.method.strategy
    return strategy if strategy in _TONES else "other"


def _scaling(comparison: Comparison) -> list[Lines]:
    """The speed-up of each method that ran with several numbers of processes, its interval as a band."""
    found: dict[str, dict[int, Point]] = {}
    for result in comparison.rows:
        if (relation := comparison.relation(result)) is not None:
            number, mean = result.row.num_processes, relation.speed_up
            low, high = (mean, mean) if relation.interval is None else (relation.interval.low, relation.interval.high)
            found.setdefault(result.row.method.name, {})[number] = Point(float(number), mean, low, high)
    several = {name: points for name, points in found.items() if len(points) > 1}
    series = [
        Series(
            name=name,
            curve=Curve(points=tuple(points[number] for number in sorted(points)), per_point=1, num_missing=0),
            tone=f"hue-{index % _NUM_HUES}",
            has_dots=True,
        )
        for index, (name, points) in enumerate(several.items())
    ]
    baseline = comparison.baseline
    title = f"Speed-up over {baseline.row.label}" if baseline is not None else ""
    picture = chart.lines(title, series, x_name="processes", note="Bands: 95 % confidence interval.")
    return [] if picture is None else [picture]


def _sentences(comparison: Comparison) -> list[str]:
    sentences = ((result.row.label, sentence_of(comparison, result)) for result in comparison.rows)
    return [f"{label}: {sentence}" for label, sentence in sentences if sentence]


def _splits(comparison: Comparison, histories: Mapping[int, training.Events]) -> list[Bars]:
    rows = []
    for result in comparison.rows:
        splits, num_steps = splits_of(training.passes_of(histories.get(result.row.number, ())))
        if splits:
            per_step = {part: sum(split[part] for split in splits) / len(splits) / num_steps for part in PARTS}
            rows.append((result.row.label, per_step))
    note = "Mean over the ranks and steps, warm-up included."
    return [training.step_bars(rows, 1, note, title="A step, by method")] if rows else []


def _curves(comparison: Comparison, histories: Mapping[int, training.Events]) -> list[Lines]:
    rows = [(result.row.label, histories.get(result.row.number, ())) for result in comparison.rows]
    return training.overlaid(rows, note="Rows that are equal to the bit lie on one another.")


def _commands(comparison: Comparison) -> Table:
    rows = [
        (
            result.row.label,
            str(run.round),
            run.status,
            "" if run.command_s is None else f"{run.command_s:.1f} s",
            shlex.join(run.command),
        )
        for result in comparison.rows
        for run in result.runs
    ]
    headings = ("row", "round", "status", "whole command", "command")
    return Table(headings=headings, rows=rows, numbers=frozenset({1, 3}), folded_under="Commands, as they were run")
