"""``--config``: the options of a command from a TOML file."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep._base.errors import ConfigError, os_error_text
from lockstep._base.escape_control import escape_control

_MOST_BYTES = 1 << 16

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """The decorator for ``--config``. The file's values take precedence over defaults only, which
    is click's order of ``default_map``, so the command does not see where a value was set."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,  # before the options that it sets
        expose_value=False,
        callback=_apply,
        help="TOML file with options, such as nproc-per-node = 2. Precedence: command line, environment, FILE, defaults.",
    )(command)


def _apply(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None or ctx.resilient_parsing:
        return
    options = [param for param in ctx.command.params if isinstance(param, click.Option) and not param.is_eager]
    by_key = {key: option for option in options for key in _keys(option.opts)}
    values, wrong = dict[str, Any](), list[str]()
    for key, value in _read(path).items():
        option = by_key.get(key)
        if option is None or option.name is None:
            wrong.append(f"{key}: {_unknown(key, value, by_key, ctx.command_path)}")
            continue
        values[option.name] = _as_given(value, option)
        try:
            option.type_cast_value(ctx, values[option.name])
        except click.BadParameter as error:
            wrong.append(f"{key} = {value!r}: {error.message}")
    if wrong:
        listed = "\n".join(f"  {escape_control(line)}" for line in wrong)
        raise ConfigError(
            f"cannot use {path} as --config:\n{listed}\nKeys are option names without leading dashes; lockstep run "
            "--help-all "
            "lists all.",
            code="config-file-keys",
        )
    ctx.default_map = values


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:  # which a shell may make of the output of another command
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(
                f"--config {path}: larger than {_MOST_BYTES} bytes. Use a TOML file with options.",
                code="config-file-too-large",
            )
        content: dict[str, Any] = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(
            f"--config {path}: {os_error_text(error)}. Use a TOML file with lines such as nproc-per-node = 2.",
            code="config-file-unreadable",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            f"--config {path}: nested too deeply. Use lines such as nproc-per-node = 2.", code="config-file-not-toml"
        ) from error
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"--config {path}: not valid TOML: {error}", code="config-file-not-toml") from error
    return content


def _keys(names: Sequence[str]) -> list[str]:
    """The long names of an option, without dashes; if there are none, the short ones."""
    return [name[2:] for name in names if name.startswith("--")] or [name[1:] for name in names]


def _unknown(key: str, value: Any, by_key: Mapping[str, click.Option], command: str) -> str:
    if isinstance(value, dict):
        return "is a table; options must be at the top level"
    near = difflib.get_close_matches(key.replace("_", "-"), by_key, n=1)
    return f"{command} has no such option" + (f". Did you mean {near[0]}?" if near else "")


def _as_given(value: Any, option: click.Option) -> Any:
    """Converts a TOML value to what the command line would contain, so that options convert and
    check it."""
    if isinstance(value, list):
        return [str(item) for item in value]
    return value if option.is_flag and isinstance(value, bool) else str(value)
