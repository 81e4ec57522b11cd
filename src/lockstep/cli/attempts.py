"""Options and progress display of ``compare`` and ``verify``."""

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
from lockstep.cli.tables import say

Command = Callable[..., None]


def options_of_attempts(*, run: str, out: str, shards: str, threads: str, timeout: str) -> Callable[[Command], Command]:
    """A decorator that adds the arguments and options of commands that run a script several times.

    The command is called with an ``Asked``, the directory for the results, and its own options by name.

    Args:
        run: the word for a run, in help texts.
        out: the default directory for the results.
        shards: description of the default number of shards.
        threads: description of the default number of threads.
        timeout: name of the option for the time limit, a colon, and its help.
    """
    name, _, timeout_help = timeout.partition(": ")
    options = (
        click.argument("script", type=click.Path(path_type=Path)),
        click.argument("args", nargs=-1, type=click.UNPROCESSED),
        click.option("-m", "--module", "is_module", is_flag=True, help="Run SCRIPT as a module, as python -m does."),
        click.option(
            "--shards",
            type=click.IntRange(min=1),
            metavar="V",
            help=f"Number of shards that each global batch is split into, in every {run}.  [default: {shards}]",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            metavar="N",
            help=f"Seed of all random streams, in every {run}.  [default: that of the script]",
        ),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            metavar="N",
            help=f"Number of CPU threads per process, in every {run}.  [default: {threads}]",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            default=Path(out),
            show_default=True,
            metavar="DIR",
            help="Directory for the results. If it exists, DIR-2, DIR-3, ... is used instead.",
        ),
        click.option(
            name,
            "timeout_s",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help=f"{timeout_help}  [default: none]",
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
    """Shows the current run, in a line that is updated on a terminal, and a line for its outcome."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._description = ""
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, description: str) -> None:
        """See Observer."""
        self._description = description
        if self._status is None:
            say(self._console, f"{description} ...")
        else:
            self._status.update(Text(description))
            self._status.start()

    def waiting(self, elapsed_s: float) -> None:
        """See Observer."""
        if self._status is not None:
            self._status.update(Text(f"{self._description}: {elapsed_s:.0f} s"))

    def ended(self, outcome: str) -> None:
        """See Observer."""
        say(self._console, f"{self._description}: {outcome}")
