"""What ``compare`` and ``verify`` share: their options, and how they say what runs."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from lockstep.analysis.attempts import Asked

Command = Callable[..., None]


def options_of_attempts(*, run: str, out: str, shards: str, threads: str, timeout: str) -> Callable[[Command], Command]:
    """The arguments and options of every verb that runs a script again and again.

    The command is called with an ``Asked``, the directory for the results, and by name with what it has of its own.

    Args:
        run: what a run is called.
        out: the name of the directory for the results.
        shards: the number of shards that is the default.
        threads: the same for threads.
        timeout: the name of the option that limits a run's time, and what then happens.
    """
    name, _, then = timeout.partition(": ")
    options = (
        click.argument("script", type=click.Path(path_type=Path)),
        click.argument("args", nargs=-1, type=click.UNPROCESSED),
        click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m."),
        click.option(
            "--shards",
            type=click.IntRange(min=1),
            metavar="V",
            help=f"Parts that each global batch is cut into, in every {run}.  [default: {shards}]",
        ),
        click.option("--seed", type=click.IntRange(min=0), help=f"Seed of every {run}.  [default: the script's own]"),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            metavar="N",
            help=f"Threads of each process, in every {run}.  [default: {threads}]",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            default=Path(out),
            show_default=True,
            metavar="DIR",
            help="Directory for the results. If there is one already, DIR-2, DIR-3, ...: nothing is overwritten.",
        ),
        click.option(
            name,
            "timeout_s",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help=f"{then}  [default: none]",
        ),
    )

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def called(out: Path, **given: Any) -> None:
            fields = {field.name: given.pop(field.name) for field in dataclasses.fields(Asked) if field.name in given}
            command(Asked(command=("lockstep", *sys.argv[1:]), **fields), out, **given)

        return functools.reduce(lambda made, option: option(made), reversed(options), called)

    return add


class Progress:
    """Says what runs: a line that moves on a terminal, a line for each run elsewhere; and a line when it has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what = ""
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, what: str) -> None:
        """See Observer."""
        self._what = what
        if self._status is None:
            say(self._console, f"{what} ...")
        else:
            self._status.update(Text(what))
            self._status.start()

    def waiting(self, elapsed_s: float) -> None:
        """See Observer."""
        if self._status is not None:
            self._status.update(Text(f"{self._what}: {elapsed_s:.0f} s"))

    def ended(self, outcome: str) -> None:
        """See Observer."""
        say(self._console, f"{self._what}: {outcome}")


def say(console: Console, line: str, style: str | None = None) -> None:
    """Print a line as it is, however long."""
    console.print(Text(line, style=style or ""), soft_wrap=True)
