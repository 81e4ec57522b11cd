"""Tables: drawn on a terminal; elsewhere one line per row, for grep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep._base.escape_control import escape_control

_GAP = 2


class Page(NamedTuple):
    """The text of a table."""

    headings: Sequence[str]
    """The headings, which are not shown if all are empty."""
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    """The headings of right-aligned columns."""
    styles: Sequence[str] = ()
    """The style of each row's second cell, on a terminal."""


def show(console: Console, page: Page) -> None:
    """Print a table."""
    if console.is_terminal:
        console.print(_draw(page), end="")
        return
    lines = [*([page.headings] if any(page.headings) else []), *page.rows]
    cells = [[escape_control(cell) for cell in line] for line in lines]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = []
        for heading, cell, width in zip(page.headings, line, widths, strict=True):
            room = " " * (width - cell_len(cell))
            padded.append(room + cell if heading in page.numbers else cell + room)
        say(console, (" " * _GAP).join(padded).rstrip())


def fits(console: Console, page: Page) -> bool:
    """Whether the table fits the terminal without wrapping cells. True if the output is not a
    terminal."""
    needed = console.measure(_draw(page), options=console.options.update(width=10_000)).maximum
    return not console.is_terminal or needed <= console.width


def say(console: Console, line: str, style: str | None = None) -> None:
    """Print a line, whatever is in it, without markup or wrapping."""
    console.print(Text(escape_control(line), style=style or ""), soft_wrap=True)


def _draw(page: Page) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD if any(page.headings) else None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="bold",
        show_header=any(page.headings),
    )
    for heading in page.headings:
        is_number = heading in page.numbers
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    styles = page.styles or [""] * len(page.rows)
    for row, style in zip(page.rows, styles, strict=True):
        table.add_row(*(Text(escape_control(cell), style=style if i == 1 else "") for i, cell in enumerate(row)))
    return table
