"""``lockstep diff``: the first step in which two runs differ."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from lockstep._base.errors import UsageError
from lockstep._cli.echo import echo_json
from lockstep._cli.options import CONTEXT
from lockstep._cli.tables import say
from lockstep._cli.terminal import open_console
from lockstep._tools.replay.digests import read_digests
from lockstep._tools.replay.record import RecordDifference, RunRecord, differences, read_record
from lockstep._tools.verify.trace.differences import Comparison, compare

_EPILOG = """
\b
Examples:
  lockstep diff runs/train-1 runs/train-2
      the first step where they differ, and how their settings differ
  lockstep diff runs/train-1 runs/train-2 --json | jq .difference.step
      for other programs

Exit status: 0 if the steps that both journals contain are equal, 1 if they differ, 2 if there is nothing to compare.
"""


@click.command("diff", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("first", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("second", metavar="RUN_B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(first: Path, second: Path, as_json: bool) -> None:
    """Find the first step where the runs in two directories differ, and compare their settings,
    scripts, versions and machines.

    The command compares the digest journals that runs write (--journal-every): samples and losses
    of all steps, and gradients and state of some."""
    records = read_record(first), read_record(second)
    comparison = compare(read_digests(first), read_digests(second))
    if comparison.is_empty:
        raise UsageError(
            f"nothing to compare: the digest journals of {first} and {second} have no step in common",
            code="diff-no-common-step",
        )
    step = comparison.steps[-1] if comparison.difference is None else comparison.difference.step
    differing = list(differences(*records, step))
    if as_json:
        echo_json(_as_json(records, comparison, differing))
    else:
        console = open_console()
        for line in _lines(records, comparison, differing):
            say(console, line)
    sys.exit(0 if comparison.difference is None else 1)


def _as_json(
    records: tuple[RunRecord, RunRecord], comparison: Comparison, differing: list[RecordDifference]
) -> dict[str, Any]:
    return {
        "runs": [str(record.path) for record in records],
        "last_steps": [record.last_step for record in records],
        "equal": comparison.difference is None,
        "steps": [comparison.steps[0], comparison.steps[-1]] if comparison.steps else None,
        "states": comparison.states,
        "difference": None if comparison.difference is None else dataclasses.asdict(comparison.difference),
        "settings": [dataclasses.asdict(item) for item in differing],
    }


def _lines(records: tuple[RunRecord, RunRecord], comparison: Comparison, differing: list[RecordDifference]) -> list[str]:
    names = tuple(str(record.path) for record in records)
    lines = []
    if comparison.difference is None:
        states = f"; gradient and state after {len(comparison.states)} of them" if comparison.states else ""
        lines.append(f"EQUAL  samples and losses of steps {comparison.steps[0]} to {comparison.steps[-1]}{states}")
    else:
        lines.append(f"DIFFERENT  first in {comparison.difference.place}: {comparison.difference.pair}")
        if comparison.states:
            lines.append(f"  gradients and state were last equal after step {comparison.states[-1]}")
        elif comparison.difference.step > 1:
            lines.append("  gradients and state were not recorded before it (--journal-every sets the interval)")
    steps = [record.last_step for record in records]
    if steps[0] != steps[1]:
        lines.append(f"  {names[0]} took {steps[0]} steps, {names[1]} {steps[1]}")
    for changes, heading in (
        (True, "differences that may change results:"),
        (False, "differences that do not change results with the default strategy:"),
    ):
        listed = [
            f"    {item.what}: {item.values[0]} vs {item.values[1]}" for item in differing if item.changes_results == changes
        ]
        lines += [f"  {heading}", *listed] if listed else []
    if not differing:
        lines.append("  no difference in settings, scripts, versions or machines")
    return lines
