"""The results of a comparison as one value, and as ``results.json``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lockstep._tools.compare.confidence import Interval, interval_of
from lockstep._tools.compare.figures import Figures, Relation, pooled, relate
from lockstep._tools.compare.methods import Row
from lockstep._tools.trials.study import Study
from lockstep._tools.trials.trial import Record


@dataclass(frozen=True, kw_only=True)
class RowRun(Record):
    """The outcome of a row in one round."""

    round: int = 1
    figures: Figures | None = None
    """The figures: present if and only if the status is ``ok``."""


NOT_RUN = RowRun(reason="the comparison was stopped before this row")


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """The outcome of a row in all rounds so far."""

    row: Row
    runs: tuple[RowRun, ...] = ()
    """The runs in the order in which they were made."""

    @property
    def measured(self) -> dict[int, Figures]:
        """The figures of each round that has some; none if the row has failed in any."""
        return {} if self.failure else {run.round: run.figures for run in self.runs if run.figures is not None}

    @property
    def failure(self) -> RowRun | None:
        """The run that failed or took too long. Other rows continue, but this one is not run
        again."""
        return next((run for run in self.runs if run.status in ("failed", "timeout")), None)

    @property
    def decisive_run(self) -> RowRun:
        """The run that decides the row's status: one that failed, otherwise the newest measured
        one, otherwise the newest one."""
        good = [run for run in self.runs if run.figures is not None]
        return self.failure or (*self.runs[-1:], NOT_RUN)[0] if self.failure or not good else good[-1]

    @property
    def status(self) -> str:
        """``ok`` (it has figures), ``failed``, ``timeout``, ``interrupted`` or ``not run``."""
        return self.decisive_run.status

    @property
    def reason(self) -> str | None:
        """The reason in one line; None if the status is ``ok``."""
        return self.decisive_run.reason

    @property
    def figures(self) -> Figures | None:
        """The figures of all rounds together: present if and only if the status is ``ok``."""
        measured = self.measured
        return pooled([measured[number] for number in sorted(measured)]) if measured else None

    @property
    def interval(self) -> Interval | None:
        """The confidence interval of samples per second; None: fewer than two rounds were
        measured."""
        return interval_of([figures.samples_per_s for figures in self.measured.values()])


@dataclass(frozen=True, kw_only=True)
class Comparison(Study):
    """One script under several methods, each of them once a round."""

    threads: int
    """The number of threads of each process, in all rows: results depend on it in the last bits,
    and so does speed."""
    rows: tuple[RowResult, ...]
    rounds: int = 1
    notes: tuple[str, ...] = ()
    """What a reader must know before relying on the figures."""

    @property
    def is_interrupted(self) -> bool:
        """Whether it was stopped from outside."""
        return any(run.status == "interrupted" for result in self.rows for run in result.runs[-1:])

    @property
    def measured(self) -> list[tuple[RowResult, Figures]]:
        """The rows that have figures, with these."""
        return [(result, figures) for result in self.rows if (figures := result.figures) is not None]

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs did the work in any row."""
        return any(figures.device != "cpu" for _, figures in self.measured)

    @property
    def baseline(self) -> RowResult | None:
        """The row that the others are compared with: the first measured ``single``, in 32-true if
        there is one."""
        singles = [result for result in self.rows if result.row.method.strategy == "single" and result.measured]
        usual = [result for result in singles if result.row.method.precision == "32-true"]
        return next(iter((*usual, *singles)), None)

    def relation(self, result: RowResult) -> Relation | None:
        """How a row compares with the baseline; None if either has no figures."""
        baseline = self.baseline
        return relate(result.measured, baseline.measured) if baseline is not None and result.measured else None

    def as_json(self) -> dict[str, Any]:
        """The contents of ``results.json``."""
        baseline = self.baseline
        return {
            **super().as_json(),
            "rounds": self.rounds,
            "baseline": None if baseline is None else baseline.row.number,
            "rows": [self._row_as_json(result) for result in self.rows],
            "notes": self.notes,
        }

    def _row_as_json(self, result: RowResult) -> dict[str, Any]:
        row = dataclasses.asdict(result.row)
        method = {"method": result.row.method.name, **row.pop("method")}
        outcome = dataclasses.asdict(dataclasses.replace(result.decisive_run, figures=result.figures))
        del outcome["round"]
        return {
            "number": row["number"],
            **method,
            **row,
            **outcome,
            "interval": _plain(result.interval),
            "against_baseline": _plain(self.relation(result)),
            "runs": [dataclasses.asdict(run) for run in result.runs],
        }


def _plain(value: Interval | Relation | None) -> dict[str, Any] | None:
    return None if value is None else dataclasses.asdict(value)
