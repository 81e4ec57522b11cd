"""Renders the parts of a page to one self-contained HTML file. Pure."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from lockstep._base.escape_control import escape_control
from lockstep._tools.report.chart import Lines, Table

_TEMPLATES = "templates"
_CODE = re.compile(r"`([^`\n]+)`|(?<![\w-])(--[a-z][a-z-]*[a-z])")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page: a heading, a sentence, and what it shows, in the order of the fields."""

    title: str
    text: str = ""
    pictures: Sequence[Lines] = ()
    tables: Sequence[Table] = ()
    facts: Sequence[tuple[str, str]] = ()
    """Names and values."""
    quotes: Sequence[tuple[str, str]] = ()
    """Output of a program: a caption, and the text verbatim."""
    remarks: Sequence[str] = ()
    """A list of sentences."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing under the heading."""
        return not (self.text or self.pictures or self.tables or self.facts or self.quotes or self.remarks)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A report on a run."""

    name: str
    state: str
    tone: str
    """The style of the state: ``good``, ``warn``, ``bad`` or ``live``."""
    command: str
    """The command line."""
    summary: str
    """A sentence or two."""
    tiles: Sequence[tuple[str, str, str]]
    """The key figures: name, value, and small print."""
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    """What a reader must know before relying on it."""
    place: str
    """The directory that was read."""
    version: str
    """The version of lockstep that made the page."""


def render(page: Page, now_s: float) -> str:
    """The text of the HTML file.

    Args:
        page: what it shows.
        now_s: when it was made, in seconds since 1970.
    """
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            sections=[section for section in page.sections if not section.is_empty],
            made=moment(now_s),
            style=Markup(_text("style.css")),
        )
    )


def moment(time_s: float) -> str:
    """A point in time, as this machine's clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def with_code(text: str) -> Markup:
    """A sentence as HTML, with options and whatever is in backticks marked up as code."""

    def element(match: re.Match[str]) -> str:
        return f"<code>{match[1]}</code>" if match[1] else f'<code class="option">{match[2]}</code>'

    return Markup(_CODE.sub(element, str(escape(escape_control(text, has_lines=True)))))


def _shown(value: Any) -> Any:
    """What a template shows of a value: the direction of writing can be turned on a page, too."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return escape_control(value, has_lines=True)
    return value


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    environment.filters.update(with_code=with_code)
    return environment


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(_TEMPLATES).joinpath(name).read_text(encoding="utf-8")
