"""Runs one script under several methods, one after another, and collects their figures."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lockstep.analysis import advice, results, runner
from lockstep.analysis.failure import first_error
from lockstep.analysis.figures import Figures, figures_of
from lockstep.analysis.machine import Machine
from lockstep.analysis.methods import Method, Row, expand
from lockstep.analysis.results import Comparison, RowResult
from lockstep.errors import ConfigError, UsageError
from lockstep.measure.events import read_history


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be compared."""

    command: tuple[str, ...]
    """What the user typed, for the record."""
    script: Path
    args: tuple[str, ...] = ()
    rows: tuple[Row, ...]
    shards: int
    """One V for all rows: the answer depends on it."""
    threads: int
    """Of each process, in all rows: the answer depends on it to the last bits, and the speed of course."""
    seed: int | None = None
    timeout_s: float | None = None
    """Of each row."""


def plan(
    *,
    command: Sequence[str] = (),
    script: Path,
    args: Sequence[str] = (),
    methods: Sequence[Method],
    nprocs: Sequence[int],
    num_cores: int,
    shards: int | None = None,
    threads: int | None = None,
    seed: int | None = None,
    timeout_s: float | None = None,
) -> Plan:
    """Fill in what was not asked for. Pure.

    Raises:
        ConfigError: there are fewer shards than processes in some row.
    """
    rows = expand(methods, nprocs)
    largest = max(row.num_processes for row in rows)
    if shards is not None and shards < largest:
        raise ConfigError(
            f"shards={shards} with rows of up to {largest} processes: a process without a shard would have nothing to "
            f"do. Ask for --shards {largest} or more, or for fewer processes with --nproc."
        )
    return Plan(
        command=tuple(command),
        script=script,
        args=tuple(args),
        rows=rows,
        shards=largest if shards is None else shards,
        threads=max(1, num_cores // largest) if threads is None else threads,
        seed=seed,
        timeout_s=timeout_s,
    )


class Observer(Protocol):
    """Told how a comparison goes on."""

    def started(self, row: Row) -> None:
        """A row's command is about to be started."""

    def waiting(self, row: Row, elapsed_s: float) -> None:
        """Several times a second while it runs."""

    def ended(self, result: RowResult) -> None:
        """It ended, one way or another."""


def new_directory(out: Path) -> Path:
    """Make ``out``; if something is there already, ``out-2``, ``out-3``, ... Nothing is ever deleted or mixed."""
    for number in itertools.count(1):
        candidate = out if number == 1 else out.with_name(f"{out.name}-{number}")
        with contextlib.suppress(FileExistsError):
            candidate.mkdir(parents=True)
            return candidate
        if candidate.is_dir() and not any(candidate.iterdir()):
            return candidate
    raise AssertionError("count() does not end")


def run(plan: Plan, *, directory: Path, machine: Machine, observer: Observer) -> Comparison:
    """Run every row. A row that fails is a row with a reason; ``results.json`` is written anew after each.

    A KeyboardInterrupt ends the row that runs, and the comparison: what was measured until then is returned and
    written.
    """
    comparison = Comparison(
        directory=directory,
        command=plan.command,
        script=str(plan.script),
        args=plan.args,
        shards=plan.shards,
        threads=plan.threads,
        seed=plan.seed,
        machine=machine,
        rows=tuple(RowResult(row=row, reason="the comparison was stopped before") for row in plan.rows),
    )
    for place, row in enumerate(plan.rows):
        observer.started(row)
        result = _run_row(plan, row, directory, observer)
        rows = (*comparison.rows[:place], result, *comparison.rows[place + 1 :])
        comparison = dataclasses.replace(comparison, rows=rows)
        results.write(comparison, advice.notes_on(comparison))
        observer.ended(result)
        if result.status == "interrupted":
            break
    return comparison


def _run_row(plan: Plan, row: Row, directory: Path, observer: Observer) -> RowResult:
    # The log lies beside the run directory, not in it: join() may refuse a directory that is not empty.
    run_dir, log = directory / "runs" / row.slug, directory / "runs" / f"{row.slug}.log"
    run_dir.parent.mkdir(exist_ok=True)
    start = runner.start_of(
        row,
        script=plan.script,
        args=plan.args,
        shards=plan.shards,
        threads=plan.threads,
        seed=plan.seed,
        run_dir=run_dir.resolve(),
    )
    ended = runner.run_to_end(
        start, log=log, timeout_s=plan.timeout_s, on_tick=lambda elapsed_s: observer.waiting(row, elapsed_s)
    )
    status, reason, figures = "failed", None, None
    if ended.status == "timeout":
        status, reason = "timeout", f"did not end within {plan.timeout_s:g} s and was stopped"
    elif ended.status == "interrupted":
        status, reason = "interrupted", f"stopped from outside after {ended.wall_s:.0f} s"
    elif ended.exit_status != 0:
        reason = first_error(log.read_text(encoding="utf-8", errors="replace"), ended.exit_status)
    else:
        try:
            status, figures = "ok", _figures(row, run_dir)
        except UsageError as error:
            status, reason = "failed", str(error)
    return RowResult(
        row=row,
        status=status,
        reason=reason,
        command=start.command,
        run_dir=str(run_dir.relative_to(directory)),
        log=str(log.relative_to(directory)),
        exit_status=ended.exit_status,
        command_s=ended.wall_s,
        figures=figures,
    )


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
