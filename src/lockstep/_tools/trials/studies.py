"""What ``compare`` and ``verify`` share: their options, and how they begin and end."""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from lockstep._base.errors import ConfigError, unknown_name
from lockstep._cli.options import args_of_script
from lockstep._cli.progress import Progress
from lockstep._cli.tables import say
from lockstep._cli.terminal import open_console, sigterm_interrupts
from lockstep._launch.gpus import num_gpus_here
from lockstep._launch.program import find_script
from lockstep._tools.trials import machine
from lockstep._tools.trials.study import Study, Task
from lockstep._tools.trials.trial import Observer
from lockstep._world.machine.cores import num_cores

Command = Callable[..., None]
S = TypeVar("S", bound=Study)


def options_of_studies(*, run: str, out: str, shards: str, threads: str, timeout: str) -> Callable[[Command], Command]:
    """A decorator that adds the arguments and options of commands that run a script several times.

    The command is called with the ``Task``, this ``Machine``, the directory for the results, and
    its own options by name.

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
        args_of_script,
        click.option("-m", "--module", "is_module", is_flag=True, help="Run SCRIPT as a module, like python -m."),
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
            help=f"Seed for all random numbers, in every {run}.  [default: the script's]",
        ),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            metavar="N",
            help=f"CPU threads per process, in every {run}.  [default: {threads}]",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            default=Path(out),
            show_default=True,
            metavar="DIR",
            help="Directory for the results. If it exists, DIR-2, DIR-3, ... is used.",
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
            fields = {field.name: given.pop(field.name) for field in dataclasses.fields(Task) if field.name in given}
            task = Task(command=("lockstep", *sys.argv[1:]), **fields)
            find_script(str(task.script), is_module=task.is_module)
            command(task, machine.look(num_cores=num_cores(), num_gpus=num_gpus_here()), out, **given)

        return functools.reduce(lambda made, option: option(made), reversed(options), called)

    return add


def conduct(study: S, what: str, run: Callable[[S, Observer], S], report: Callable[[S, Console], None]) -> S:
    """Runs a study that has begun, and reports on it. The process exits here if the study was
    interrupted.

    Args:
        study: the planned study, with a directory for its results.
        what: the text of the first line.
        run: runs the study.
        report: prints the results.
    """
    console = open_console()
    say(console, f"{what}, results in {study.directory}")
    with sigterm_interrupts() as stopped_by, Progress(console) as progress:
        study = run(study, progress)
    report(study, console)
    if study.is_interrupted:
        sys.exit(128 + (signal.SIGTERM if stopped_by else signal.SIGINT))
    return study


def numbers(*, least: int) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    """Whole numbers of at least ``least``."""

    def parse(_: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
        parts = [] if text is None else [part.strip() for part in text.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) >= least for part in parts):
            raise ConfigError(
                f"{option.opts[0]} {text}: expected whole numbers, {least} or more, separated by commas, for example "
                f"{least},4.",
                code="list-invalid",
            )
        return None if text is None else tuple(dict.fromkeys(map(int, parts)))

    return parse


def names(
    kind: str, valid: Collection[str]
) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...] | None]:
    """At least one of the valid names; ``kind``: what they are names of."""

    def parse(_: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
        given = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
        for name in given:
            if name not in valid:
                raise unknown_name(kind, name, valid)
        if text is not None and not given:
            raise ConfigError(f"{option.opts[0]} {text!r} is empty: choose one of {', '.join(valid)}.", code="list-empty")
        return None if text is None else tuple(dict.fromkeys(given))

    return parse
