"""The results of a comparison as one value, and as ``results.json``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lockstep.analysis.figures import Figures, Relation, relate
from lockstep.analysis.methods import Row
from lockstep.analysis.study import Study
from lockstep.analysis.trial import Record


@dataclass(frozen=True, kw_only=True)
class RowResult(Record):
    """What became of one row."""

    row: Row
    figures: Figures | None = None
    """Always there if the status is ``ok``, never otherwise."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Study):
    """One script under several methods."""

    threads: int
    """Of each process, in all rows: the answer depends on it to the last bits, and the speed of course."""
    rows: tuple[RowResult, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the figures."""

    @property
    def is_interrupted(self) -> bool:
        """Whether it was stopped from outside."""
        return any(result.status == "interrupted" for result in self.rows)

    @property
    def baseline(self) -> RowResult | None:
        """The row that the others are compared with: the first ``single`` that ran, in the usual precision if there is
        one."""
        singles = [result for result in self.rows if result.row.method.strategy == "single" and result.figures]
        usual = [result for result in singles if result.row.method.precision == "32-true"]
        return next(iter((*usual, *singles)), None)

    def relation(self, result: RowResult) -> Relation | None:
        """A row beside the baseline; None if either has no figures."""
        baseline = self.baseline
        if baseline is None or baseline.figures is None or result.figures is None:
            return None
        return relate(result.figures, baseline.figures)

    def as_json(self) -> dict[str, Any]:
        """The contents of ``results.json``."""
        baseline = self.baseline
        return {
            **super().as_json(),
            "baseline": None if baseline is None else baseline.row.number,
            "rows": [self._row_as_json(result) for result in self.rows],
            "notes": self.notes,
        }

    def _row_as_json(self, result: RowResult) -> dict[str, Any]:
        relation = self.relation(result)
        fields = dataclasses.asdict(result)
        row = fields.pop("row")
        method = {"method": result.row.method.name, **row.pop("method")}
        against = None if relation is None else dataclasses.asdict(relation)
        return {"number": row["number"], **method, **row, **fields, "against_baseline": against}
