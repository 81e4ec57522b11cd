"""Makes text safe to print, so that a terminal shows it instead of acting on it."""

from __future__ import annotations

_OF_LINES = "\n\t"


def escape_control(text: str, *, has_lines: bool = False) -> str:
    """Escapes control characters like Python literals do: ``\\x1b``, ``\\r``, ``\\u202e``.

    Strings in files may come from another user, and a terminal acts on such characters: it clears
    lines, or turns the direction of writing. ``str.isprintable`` decides which characters are
    escaped.

    Args:
        text: any text.
        has_lines: whether to keep line feeds and tabs.
    """
    if text.isprintable():
        return text
    kept = _OF_LINES if has_lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text)
