"""Runs one script under several methods, one after another, and collects their figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lockstep.analysis import advice
from lockstep.analysis.comparison import Comparison, RowResult
from lockstep.analysis.figures import Figures, figures_of
from lockstep.analysis.machine import Machine
from lockstep.analysis.methods import Method, Row, expand
from lockstep.analysis.study import Task
from lockstep.analysis.table import count
from lockstep.analysis.trial import Observer, Trial, run_trial
from lockstep.errors import ConfigError, UsageError
from lockstep.measure.events import read_history


def plan(task: Task, methods: Sequence[Method], nprocs: Sequence[int], machine: Machine) -> Comparison:
    """A comparison of which nothing was run yet, with what was not asked for filled in. Pure.

    Raises:
        ConfigError: there are fewer shards than processes in some row.
    """
    rows = expand(methods, nprocs)
    largest = max(row.num_processes for row in rows)
    if task.shards is not None and task.shards < largest:
        raise ConfigError(
            f"shards={task.shards} with rows of up to {largest} processes: a process without a shard would have nothing to "
            f"do. Ask for --shards {largest} or more, or for fewer processes with --nproc."
        )
    return Comparison(
        task=task,
        machine=machine,
        shards=largest if task.shards is None else task.shards,
        threads=max(1, machine.num_cores // largest) if task.threads is None else task.threads,
        rows=tuple(RowResult(row=row, reason="the comparison was stopped before") for row in rows),
    )


def run(comparison: Comparison, observer: Observer) -> Comparison:
    """Run every row. A row that fails is a row with a reason; ``results.json`` is written anew after each.

    A KeyboardInterrupt ends the row that runs, and the comparison: what was measured until then is returned and
    written.
    """
    for index, planned in enumerate(comparison.rows):
        row = planned.row
        observer.started(f"[{row.number}/{len(comparison.rows)}] {row.label}")
        result = _run_row(comparison, row, observer)
        comparison = dataclasses.replace(comparison, rows=(*comparison.rows[:index], result, *comparison.rows[index + 1 :]))
        comparison = comparison.noting(notes=tuple(advice.notes_on(comparison)))
        speed = f"{count(result.figures.samples_per_s)} samples/s" if result.figures else f"{result.status}: {result.reason}"
        observer.ended(f"{speed} ({result.command_s or 0:.1f} s in all)")
        if result.status == "interrupted":
            break
    return comparison


def trial_of(comparison: Comparison, row: Row) -> Trial:
    """How a row is run."""
    return comparison.trial(
        f"runs/{row.slug}",
        launcher=row.method.launcher,
        num_processes=row.num_processes,
        settings={"strategy": row.method.strategy, "precision": row.method.precision},
        # For libraries that count them before the script joins. (torchrun would set it to 1, and other launchers would not.)
        variables={"OMP_NUM_THREADS": str(comparison.threads)},
    )


def _run_row(comparison: Comparison, row: Row, observer: Observer) -> RowResult:
    trial = trial_of(comparison, row)
    result = RowResult(row=row, **vars(run_trial(trial, observer)))
    if result.status != "ok":
        return result
    try:
        return dataclasses.replace(result, figures=_figures(trial))
    except UsageError as error:
        return dataclasses.replace(result, status="failed", reason=str(error))


def _figures(trial: Trial) -> Figures:
    try:
        figures = figures_of(read_history(trial.run_dir))
    except FileNotFoundError:
        raise UsageError(
            "the script ended well but left no journal to measure it by: it must call lockstep.join(), and must not "
            "give it a run_dir of its own"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the run's journal cannot be read ({error!r}): was it written by another version?") from error
    if figures.num_processes != trial.num_processes:
        raise UsageError(f"the script ran as {figures.num_processes} processes, not as {trial.num_processes}")
    return figures
