"""Output as pages of the documentation show it."""

from __future__ import annotations

WIDTH = 100
"""Of the pages, in characters: longer lines of output are continued on the next one."""


def unwrapped(text: str) -> str:
    """Output as it was printed: a line belongs to the one before if its first word had no room
    there."""
    lines: list[str] = []
    before = ""
    for line in text.splitlines():
        is_continued = bool(before) and line[:1].strip() and len(before) + 1 + len(line.split(" ")[0]) > WIDTH
        if is_continued:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
        before = line
    return "\n".join(lines)
