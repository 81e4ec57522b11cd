"""The click group ``lockstep``, whose commands are imported only when used."""

from __future__ import annotations

import difflib
import importlib

import click

from lockstep.cli.echo import echo
from lockstep.cli.options import CONTEXT

OVERVIEW = {
    "Every day": {
        "new": "Write a training script to start from, and say what to do next.",
        "run": "Run a training script on several processes, on one or several machines.",
        "verify": "Verify that a script gives the same answer with any number of processes.",
        "runs": "List runs, with their states and how to resume them; delete old ones.",
        "watch": "Show a run live: progress, loss curve, ranks, events.",
        "report": "Write a report on a run, a comparison or a verification, as one HTML file.",
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
"""The commands, with their lines in the overview, which imports none."""
_MODULES = {"new": "lockstep.cli.new", "run": "lockstep.cli.run", "stacks": "lockstep.tools.explain.command"}
_MODULES["diff"] = "lockstep.tools.replay.diff_command"
"""Where ``command`` is, if not in the tool of its name."""
VERBS = [verb for verbs in OVERVIEW.values() for verb in verbs]


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(
            _MODULES.get(cmd_name, f"lockstep.tools.{cmd_name}.command")
        ).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click, but the error for an unknown command lists the known ones."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            if args[0].endswith(".py"):
                hint = f" To run a script: lockstep run {args[0]}"
            ctx.fail(f"unknown command {args[0]!r}: choose one of {', '.join(VERBS)}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table."""
        width = max(map(len, VERBS))  # one column for all groups
        for title, verbs in OVERVIEW.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(width), line) for verb, line in verbs.items()])


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
    """Train a PyTorch model on one process or many from the same plain loop, with the same answer at every scale."""
