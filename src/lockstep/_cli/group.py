"""The click group ``lockstep``, whose commands are imported only when used."""

from __future__ import annotations

import difflib

import click

from lockstep._base import extensions
from lockstep._cli.echo import echo
from lockstep._cli.options import CONTEXT

OVERVIEW = {
    "Every day": {
        "new": "Write a training script to start from, and say what to do next.",
        "run": "Run a training script on several processes, on one or several machines.",
        "verify": "Verify that a script gives the same answer with any number of processes.",
        "runs": "List runs, with their states and how to resume them.",
        "watch": "Show a run live: progress, values, ranks.",
        "report": "Write a report on a run, as one HTML file.",
    },
    "When needed": {
        "compare": "Run a script with several methods, and compare speed and answer.",
        "tune": "Find the loader settings with which a script waits least for data.",
        "doctor": "Check whether this machine, or several together, can train.",
        "slurm": "Write a Slurm batch file that runs a script, check it, and submit it.",
        "check": "Read a script's loop, and list what would differ on several processes or after a resume.",
    },
    "Looking into a run": {
        "diff": "Find the first step in which two runs differ, and how their settings differ.",
        "replay": "Replay any step of a run exactly, and show what was computed in it.",
        "stacks": "Show what every rank of a run is doing now: which wait, and for whom.",
        "checkpoint": "Inspect or verify a checkpoint, or export a model from it.",
    },
}
"""The commands of this package, with their lines in the overview, which imports none."""
OTHERS = "From other packages"


def overview() -> dict[str, dict[str, str]]:
    """What is installed of these, and the commands of other packages."""
    names = extensions.names("commands")
    ours = {title: {name: line for name, line in lines.items() if name in names} for title, lines in OVERVIEW.items()}
    known = {name for lines in ours.values() for name in lines}
    others = {name: f"Added by {extensions.package_of('commands', name)}." for name in names if name not in known}
    return {title: lines for title, lines in {**ours, OTHERS: others}.items() if lines}


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the overview's order."""
        return [name for lines in overview().values() for name in lines]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if not self._has(cmd_name):
            return None
        command: click.Command = extensions.load("commands", cmd_name)
        return command

    def _has(self, name: str) -> bool:
        # The second takes longer: it looks through all installed packages.
        return name in extensions.built_in_names("commands") or name in extensions.names("commands")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click, but the error for an unknown command lists the known ones."""
        if args and not args[0].startswith("-") and not self._has(args[0]):
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            if args[0].endswith(".py"):
                hint = f" To run a script: lockstep run {args[0]}"
            ctx.fail(f"unknown command {args[0]!r}: choose one of {', '.join(known)}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview."""
        width = max(map(len, self.list_commands(ctx)))  # one column for all groups
        for title, lines in overview().items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib import metadata  # slow to import

        echo(f"lockstep {metadata.version('torch-lockstep')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version and exit."
)
def group() -> None:
    """Train a PyTorch model on one process or many from the same plain loop, with the same answer
    at every scale."""
