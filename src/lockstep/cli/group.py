"""The click group ``lockstep``: its verbs are imported only when they are used."""

from __future__ import annotations

import importlib

import click

# name: (where its click command is, what the overview says of it). Written here, so that the overview imports no verb.
VERBS = {
    "run": ("lockstep.cli.run:command", "Run a training script on several processes of this machine."),
    "slurm": ("lockstep.cli.slurm:command", "Write a batch file that runs a script on nodes of a Slurm cluster; submit it."),
    "compare": ("lockstep.cli.compare:command", "Run a script under several methods, and compare speed and answer."),
    "verify": ("lockstep.cli.verify:command", "Show that a script gives the same answer at every number of processes."),
    "runs": (
        "lockstep.cli.runs:command",
        "List runs: which are running, finished or interrupted, and how to resume. Delete old ones.",
    ),
    "checkpoint": ("lockstep.cli.checkpoint:command", "Look into a checkpoint, check it, or take a model out of it."),
}


class LazyGroup(click.Group):
    """A group that imports a verb when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        module_name, _, attribute = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module_name), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown verb is told the known ones."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            hint = f" To run a script: lockstep run {args[0]}" if args[0].endswith(".py") else ""
            ctx.fail(f"unknown command {args[0]!r}: choose one of {', '.join(VERBS)}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib import metadata  # takes longer than all the rest

        click.echo(f"lockstep {metadata.version('torch-lockstep')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Version.")
def group() -> None:
    """Train a PyTorch model on one process or many from the same plain loop, with the same answer at every scale."""
