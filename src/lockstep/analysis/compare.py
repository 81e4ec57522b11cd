"""Runs one script under several methods, one after another, and collects their figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lockstep.analysis import advice, runner
from lockstep.analysis.attempts import Asked, Observer, attempt, write_results
from lockstep.analysis.figures import Figures, figures_of
from lockstep.analysis.machine import Machine
from lockstep.analysis.methods import Method, Row, expand
from lockstep.analysis.results import Comparison, Plan, RowResult
from lockstep.analysis.table import count
from lockstep.errors import ConfigError, UsageError
from lockstep.measure.events import read_history


def plan(asked: Asked, methods: Sequence[Method], nprocs: Sequence[int], num_cores: int) -> Plan:
    """Fill in what was not asked for. Pure.

    Raises:
        ConfigError: there are fewer shards than processes in some row.
    """
    rows = expand(methods, nprocs)
    largest = max(row.num_processes for row in rows)
    if asked.shards is not None and asked.shards < largest:
        raise ConfigError(
            f"shards={asked.shards} with rows of up to {largest} processes: a process without a shard would have nothing to "
            f"do. Ask for --shards {largest} or more, or for fewer processes with --nproc."
        )
    shards = largest if asked.shards is None else asked.shards
    threads = max(1, num_cores // largest) if asked.threads is None else asked.threads
    return Plan(**asked.completed(rows=rows, shards=shards, threads=threads))


def run(plan: Plan, *, directory: Path, machine: Machine, observer: Observer) -> Comparison:
    """Run every row. A row that fails is a row with a reason; ``results.json`` is written anew after each.

    A KeyboardInterrupt ends the row that runs, and the comparison: what was measured until then is returned and
    written.
    """
    comparison = Comparison(
        directory=directory,
        plan=plan,
        machine=machine,
        rows=tuple(RowResult(row=row, reason="the comparison was stopped before") for row in plan.rows),
    )
    for index, row in enumerate(plan.rows):
        observer.started(f"[{row.number}/{len(plan.rows)}] {row.label}")
        result = _run_row(plan, row, directory, observer)
        rows = (*comparison.rows[:index], result, *comparison.rows[index + 1 :])
        comparison = dataclasses.replace(comparison, rows=rows)
        write_results(directory, comparison.as_json(advice.notes_on(comparison)))
        speed = f"{count(result.figures.samples_per_s)} samples/s" if result.figures else f"{result.status}: {result.reason}"
        observer.ended(f"{speed} ({result.command_s or 0:.1f} s in all)")
        if result.status == "interrupted":
            break
    return comparison


def _run_row(plan: Plan, row: Row, directory: Path, observer: Observer) -> RowResult:
    run_dir = directory / "runs" / row.slug
    start = runner.start_of(
        row,
        program=plan.program,
        shards=plan.shards,
        threads=plan.threads,
        seed=plan.seed,
        run_dir=run_dir.resolve(),
    )
    log = run_dir.with_name(run_dir.name + ".log")
    tried = attempt(plan, start, run_dir=run_dir, log=log, directory=directory, observer=observer)
    result = RowResult(row=row, **vars(tried))
    if result.status != "ok":
        return result
    try:
        return dataclasses.replace(result, figures=_figures(row, run_dir))
    except UsageError as error:
        return dataclasses.replace(result, status="failed", reason=str(error))


def _figures(row: Row, run_dir: Path) -> Figures:
    try:
        figures = figures_of(read_history(run_dir))
    except FileNotFoundError:
        raise UsageError(
            "the script ended well but left no journal to measure it by: it must call lockstep.join(), and must not "
            "give it a run_dir of its own"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the run's journal cannot be read ({error!r}): was it written by another version?") from error
    if figures.num_processes != row.num_processes:
        raise UsageError(f"the script ran as {figures.num_processes} processes, not as {row.num_processes}")
    return figures
