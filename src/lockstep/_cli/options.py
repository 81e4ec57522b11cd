"""Click options, created from the dataclass fields that they set."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep._base.config import all_settings, setting_kinds
from lockstep._base.option import MACHINES, Option, help_of, options_of
from lockstep._cli.config_file import config_option
from lockstep._cli.echo import echo
from lockstep._launch.options import LaunchOptions

_HELP_ALL = "lockstep.help_all"
F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}
"""Click's context settings for all commands."""
CONTEXT_OF_SCRIPTS = {
    **CONTEXT,
    "allow_interspersed_args": False,
    "token_normalize_func": lambda name: name.replace("_", "-"),  # as torchrun has them
}
"""Click's context settings for commands that run a script: all arguments after it belong to the
script."""


def _of_script(_: click.Context, __: click.Parameter, args: tuple[str, ...]) -> tuple[str, ...]:
    return args[1:] if args[:1] == ("--",) else args


args_of_script = click.argument("args", nargs=-1, type=click.UNPROCESSED, callback=_of_script)
"""The decorator for the script's arguments. A ``--`` between the script and its arguments is
dropped."""

_OF_TORCHRUN = ("nproc_per_node", "max_restarts", "log_dir", "redirects", "standalone")
"""Options, in addition to the options for several machines, that torchrun also reads from the
environment, as PET_<NAME>."""


def options_from(*kinds: type, shown: Collection[str] | None = None) -> Callable[[F], F]:
    """A decorator that adds an option for each field with one. Options not given on the command
    line are None or empty.

    Args:
        kinds: the dataclasses.
        shown: names of the fields whose options are in the help (None: all); other options are
            accepted, too.
    """

    def add(command: F) -> F:
        for kind in reversed(kinds):  # decorators are applied from the last to the first
            hints = typing.get_type_hints(kind)
            for name, option in reversed(options_of(kind).items()):
                names = option.names or (f"--{name.replace('_', '-')}",)
                hidden = shown is not None and name not in shown
                arguments = _arguments(name, option, hints[name])
                command = click.option(*names, name, cls=_FieldOption, kind=kind, hidden=hidden, **arguments)(command)
        return command

    return add


class _FieldOption(click.Option):
    """An option for a field of a dataclass, whose help is looked up when it is shown."""

    def __init__(self, *args: Any, kind: type, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kind = kind

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Returns the option and its help, which is read from the dataclass now."""
        self.help = help_of(self._kind).get(str(self.name))
        return super().get_help_record(ctx)


def given(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values given to a command that are fields of this dataclass."""
    return _given(options_of(kind), values)


def given_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values given to a command that are settings of a run, or options of tools in it."""
    return _given(all_settings(), values)


def _given(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names and value is not None and value != ()}


class GroupedCommand(click.Command):
    """A command whose help lists options under headings.

    Args:
        headings: each heading, and the names of its parameters in order; of one with None, all that
            are under no other.
        common: names of the parameters that ``--help`` shows, while ``--help-all`` shows all; None:
            there is only ``--help``.
    """

    def __init__(
        self,
        *args: Any,
        headings: Mapping[str, Sequence[str] | None],
        common: Collection[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._headings = headings
        self._common = common
        if common is not None:
            self.params.append(_help_all())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options under their headings, and how many are left out."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {param.name: record for param in options if (record := param.get_help_record(ctx))}
        listed = {name for names in self._headings.values() for name in names or ()}
        rest = [name for name in records if name not in listed]
        left_out = 0
        for title, names in self._headings.items():
            named = rest if names is None else names
            shown = named if names is None or self._common is None or _HELP_ALL in ctx.meta else self._only_common(named)
            left_out += len(named) - len(shown)
            if shown:
                with formatter.section(title):
                    formatter.write_dl([records[name] for name in shown])
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")

    def _only_common(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in (self._common or ())]


def _help_all() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            ctx.meta[_HELP_ALL] = True
            echo(ctx.get_help(), has_lines=True)
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show all options and exit."
    )


def command_of_script(
    name: str, *, shown: Sequence[str], epilog: str, needs_script: bool
) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator that makes a command with all options of ``lockstep run``, which examines a
    script: ``script``, ``args``.

    Args:
        name: of the command.
        shown: options of ``lockstep run`` to show in its help.
        epilog: the end of its help.
        needs_script: whether a script is required.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        for decorate in (
            args_of_script,
            click.argument("script", required=needs_script),
            config_option,
            options_from(LaunchOptions, *setting_kinds(), shown=shown),
        ):
            function = decorate(function)
        return click.command(
            name,
            cls=GroupedCommand,
            headings={"Options": None, "Options of lockstep run, such as": shown},
            epilog=epilog,
            context_settings=CONTEXT_OF_SCRIPTS,
            options_metavar="[OPTIONS]",
        )(function)

    return make


def _arguments(field: str, option: Option, hint: Any) -> dict[str, Any]:
    # torchrun's environment variables: PET_NNODES is --nnodes.
    arguments: dict[str, Any] = {"default": None}
    if option.group == MACHINES or field in _OF_TORCHRUN:
        arguments["envvar"] = f"PET_{field.upper()}"
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if bool in kinds:
        return {**arguments, "is_flag": True}
    if typing.get_origin(hint) is Sequence:
        return {**arguments, "multiple": True, "metavar": option.metavar}
    kind: Any = str
    if Path in kinds:
        is_file = option.metavar == "FILE"
        kind = click.Path(path_type=Path, file_okay=is_file, dir_okay=not is_file)
    elif str not in kinds:
        kind = int if int in kinds else float
    return {**arguments, "type": kind, "metavar": option.metavar}
