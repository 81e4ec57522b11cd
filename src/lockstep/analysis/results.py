"""The results of a comparison as one value, and as ``results.json``."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.analysis.figures import Figures, Relation, relate
from lockstep.analysis.machine import Machine
from lockstep.analysis.methods import Row

SCHEMA = 1
FILE_NAME = "results.json"


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """What became of one row."""

    row: Row
    status: str = "not run"
    """``ok``, ``failed``, ``timeout``, ``interrupted`` or ``not run``."""
    reason: str | None = None
    """Why there are no figures; None if the status is ``ok``."""
    command: tuple[str, ...] = ()
    run_dir: str | None = None
    """Relative to the comparison's directory, as is ``log``."""
    log: str | None = None
    exit_status: int | None = None
    command_s: float | None = None
    """The whole command, start-up and evaluation included."""
    figures: Figures | None = None
    """Always there if the status is ``ok``, never otherwise."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One script under several methods."""

    directory: Path
    command: tuple[str, ...]
    """What the user typed."""
    script: str
    args: tuple[str, ...]
    shards: int
    threads: int
    seed: int | None
    """None: the script's own."""
    machine: Machine
    rows: tuple[RowResult, ...]

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

    def as_json(self, notes: list[str]) -> dict[str, Any]:
        """The contents of ``results.json``."""
        baseline = self.baseline
        return {
            "schema": SCHEMA,
            "command": self.command,
            "script": self.script,
            "args": self.args,
            "directory": str(self.directory.resolve()),
            "shards": self.shards,
            "threads": self.threads,
            "seed": self.seed,
            "machine": dataclasses.asdict(self.machine),
            "baseline": None if baseline is None else baseline.row.number,
            "rows": [self._row_as_json(result) for result in self.rows],
            "notes": notes,
        }

    def _row_as_json(self, result: RowResult) -> dict[str, Any]:
        relation = self.relation(result)
        return {
            "number": result.row.number,
            "method": result.row.method.name,
            **dataclasses.asdict(result.row.method),
            "num_processes": result.row.num_processes,
            **{
                field.name: getattr(result, field.name)
                for field in dataclasses.fields(result)
                if field.name not in ("row", "figures")
            },
            "figures": None if result.figures is None else dataclasses.asdict(result.figures),
            "against_baseline": None if relation is None else dataclasses.asdict(relation),
        }


def counted(number: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def write(comparison: Comparison, notes: list[str]) -> Path:
    """Write ``results.json``, replacing an earlier one whole: a reader never finds half a file."""
    path = comparison.directory / FILE_NAME
    draft = path.with_suffix(".json.new")
    draft.write_text(json.dumps(comparison.as_json(notes), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(draft, path)  # noqa: PTH105 - the atomic one, by its usual name
    return path
