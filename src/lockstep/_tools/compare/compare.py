"""Runs one script under several methods, one after another and several times round, and collects
their figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lockstep._base.errors import ConfigError, UsageError
from lockstep._events.format import FILE_NAME
from lockstep._events.history import read_history
from lockstep._tools.compare import advice
from lockstep._tools.compare.comparison import Comparison, RowResult, RowRun
from lockstep._tools.compare.figures import Figures, figures_of
from lockstep._tools.compare.methods import Method, expand
from lockstep._tools.compare.table import count
from lockstep._tools.trials.machine import Machine
from lockstep._tools.trials.study import Task
from lockstep._tools.trials.trial import Observer, Trial, run_trial

_NO_EVENT_LOG = "the script finished but left no event log to measure. It must call lockstep.join(), without run_dir="


def plan(task: Task, methods: Sequence[Method], nprocs: Sequence[int], machine: Machine, *, rounds: int = 3) -> Comparison:
    """A comparison before its first run, with defaults filled in. Pure.

    Args:
        task: what was asked for.
        methods: of the rows.
        nprocs: numbers of processes of each method that takes several.
        machine: this one.
        rounds: how many times each row runs.

    Raises:
        ConfigError: there are fewer shards than processes in some row.
    """
    rows = expand(methods, nprocs)
    largest = max(row.num_processes for row in rows)
    if task.shards is not None and task.shards < largest:
        raise ConfigError(
            f"shards={task.shards} but rows have up to {largest} processes: each process needs at least one shard. Use "
            f"--shards {largest} or more, or fewer processes (--nproc).",
            code="world-size-above-shards",
        )
    return Comparison(
        task=task,
        machine=machine,
        shards=largest if task.shards is None else task.shards,
        threads=max(1, machine.num_cores // largest) if task.threads is None else task.threads,
        rows=tuple(RowResult(row=row) for row in rows),
        rounds=rounds,
    )


def run(comparison: Comparison, observer: Observer) -> Comparison:
    """Run every row once a round. ``results.json`` is rewritten after each run.

    A row that fails has the reason. A KeyboardInterrupt ends the row that runs, and the comparison:
    what was measured so far is returned and written.
    """
    order = turns(len(comparison.rows), comparison.rounds)
    for number, (turn_round, index) in enumerate(order, start=1):
        result = comparison.rows[index]
        if result.failure is not None:  # a row that failed once is not run again
            continue
        round_of = f", round {turn_round} of {comparison.rounds}" if comparison.rounds > 1 else ""
        observer.started(f"[{number}/{len(order)}] {result.row.label}{round_of}")
        done = _run_row(comparison, result, turn_round, observer)
        result = dataclasses.replace(result, runs=(*result.runs, done))
        rows = (*comparison.rows[:index], result, *comparison.rows[index + 1 :])
        shards = (done.figures and done.figures.num_shards) or comparison.shards
        comparison = dataclasses.replace(comparison, rows=rows, shards=shards)
        comparison = comparison.noting(notes=tuple(advice.notes_on(comparison)))
        speed = f"{count(done.figures.samples_per_s)} samples/s" if done.figures else f"{done.status}: {done.reason}"
        observer.ended(f"{speed} ({done.command_s or 0:.1f} s in all)")
        if done.status == "interrupted" or not (_has_joined(comparison, done) or any(row.measured for row in rows)):
            break  # the script would not join in another row either
    return comparison


def turns(num_rows: int, rounds: int) -> list[tuple[int, int]]:
    """The round and the row of each run: each row once a round, so that a temporary slowdown of the
    machine affects all rows.

    Every second round goes backwards, which spreads slow drifts (heat, for example) evenly over the
    rows. Pure."""
    rows = range(num_rows)
    return [(number, index) for number in range(1, rounds + 1) for index in (rows if number % 2 else reversed(rows))]


def _has_joined(comparison: Comparison, done: RowRun) -> bool:
    """Returns whether a script that exited with status 0 uses lockstep. (A script that failed
    may.)"""
    return done.exit_status != 0 or (comparison.directory / str(done.run_dir) / FILE_NAME).exists()


def trial_of(comparison: Comparison, result: RowResult, turn_round: int) -> Trial:
    """How a row is run in a round."""
    row, method = result.row, result.row.method
    return comparison.trial(
        f"runs/{row.slug}-round{turn_round}",
        launcher=method.launcher,
        num_processes=row.num_processes,
        settings={"strategy": method.strategy, "precision": method.precision},
        # For libraries that count them before the script joins. (torchrun would set it to 1, and
        # other launchers would not.)
        variables={"OMP_NUM_THREADS": str(comparison.threads)},
    )


def _run_row(comparison: Comparison, result: RowResult, turn_round: int, observer: Observer) -> RowRun:
    trial = trial_of(comparison, result, turn_round)
    done = RowRun(round=turn_round, **vars(run_trial(trial, observer)))
    if done.status != "ok":
        return done
    try:
        return dataclasses.replace(done, figures=_figures(trial))
    except UsageError as error:
        return dataclasses.replace(done, status="failed", reason=str(error), code=error.code)


def _figures(trial: Trial) -> Figures:
    try:
        figures = figures_of(read_history(trial.run_dir))
    except FileNotFoundError:
        raise UsageError(_NO_EVENT_LOG, code="no-journal") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"cannot read the run's event log ({error!r}). It may be from another version of lockstep.",
            code="journal-unreadable",
        ) from error
    if figures.num_processes != trial.num_processes:
        raise UsageError(
            f"the script ran on {figures.num_processes} processes instead of {trial.num_processes}",
            code="world-size-differs",
        )
    return figures
