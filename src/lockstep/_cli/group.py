"""The click group ``lockstep``, whose commands are imported only when used."""

from __future__ import annotations

import difflib

import click

from lockstep._base import extensions
from lockstep._cli.echo import echo
from lockstep._cli.options import CONTEXT

OVERVIEW = {
    "Every day": {
        "new": "Create a training script to start from.",
        "run": "Run a training script on one or more processes and machines.",
        "verify": "Run a script on different numbers of processes, with kills and resumes, and compare weights bit for bit.",
        "runs": "List runs, their states, and how to resume them.",
        "watch": "Show a run's progress, values and ranks live.",
        "report": "Write an HTML report on a run.",
    },
    "When needed": {
        "compare": "Compare the speed and results of training methods.",
        "tune": "Find the number of loader workers with the shortest wait for data.",
        "doctor": "Check that this machine, or several together, can train.",
        "slurm": "Create, check and submit a Slurm batch file for a script.",
        "check": "Find code that depends on the number of processes or is lost on resume, without running the script.",
    },
    "Looking into a run": {
        "diff": "Find the first step where two runs differ, and compare their settings.",
        "replay": "Recompute any step of a run and show its samples and losses.",
        "stacks": "Show what each rank is doing, and which ranks block the others.",
        "checkpoint": "Inspect, verify or export a checkpoint.",
    },
}
"""The commands of this package with their lines in ``lockstep --help``. They are listed here so
that the overview imports no command."""
OTHERS = "From other packages"
"""The heading for commands of other packages."""


def overview() -> dict[str, dict[str, str]]:
    """Returns the installed commands of this package by heading, and the commands of other
    packages."""
    names = extensions.names("commands")
    ours = {title: {name: line for name, line in lines.items() if name in names} for title, lines in OVERVIEW.items()}
    known = {name for lines in ours.values() for name in lines}
    others = {name: f"Added by {extensions.package_of('commands', name)}." for name in names if name not in known}
    return {title: lines for title, lines in {**ours, OTHERS: others}.items() if lines}


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Lists all commands in the overview's order."""
        return [name for lines in overview().values() for name in lines]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command."""
        if not self._has(cmd_name):
            return None
        command: click.Command = extensions.load("commands", cmd_name)
        return command

    def _has(self, name: str) -> bool:
        # Built-in names first: the other look-up reads the metadata of all installed packages.
        return name in extensions.built_in_names("commands") or name in extensions.names("commands")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves a command like click does; the error for an unknown command lists the known
        ones."""
        if args and not args[0].startswith("-") and not self._has(args[0]):
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            if args[0].endswith(".py"):
                hint = f" To run a script: lockstep run {args[0]}"
            ctx.fail(f"unknown command {args[0]!r}: use one of {', '.join(known)}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the overview."""
        width = max(map(len, self.list_commands(ctx)))  # one column for all groups
        for title, lines in overview().items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib import metadata  # slow to import

        echo(f"lockstep {metadata.version('torch-lockstep')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings=CONTEXT,
    epilog='Run "lockstep COMMAND --help" for the options and examples of a command.',
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version and exit."
)
def group() -> None:
    """Data-parallel PyTorch training with bit-identical results on any number of processes.

    To start: lockstep new my-training"""
