"""Plain output of commands. (Tables: ``terminal``.)"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import click

from lockstep._base.escape_control import escape_control


class Styled(NamedTuple):
    """A part of a line that has a style on a terminal."""

    text: str
    color: str | None = None
    bold: bool = False


def echo(*parts: str | Styled, err: bool = False, has_lines: bool = False) -> None:
    """Print a line, whatever is in it.

    Args:
        parts: of the line.
        err: to standard error instead of standard output.
        has_lines: whether it may contain several lines; otherwise line feeds are escaped like other
            control characters.
    """
    click.echo("".join(_shown(part, has_lines=has_lines) for part in parts), err=err)


def echo_json(value: Any) -> None:
    """Print a JSON value for other programs."""
    # the one control character that stays in ASCII
    click.echo(json.dumps(value, indent=1).replace("\x7f", "\\u007f"))


def _shown(part: str | Styled, *, has_lines: bool) -> str:
    if isinstance(part, str):
        return escape_control(part, has_lines=has_lines)
    return click.style(escape_control(part.text, has_lines=has_lines), fg=part.color, bold=part.bold or None)
