"""Text that is safe to print: what it says is what a terminal shows."""

from __future__ import annotations

_OF_LINES = "\n\t"


def escape_control(text: str, *, has_lines: bool = False) -> str:
    """Write out control characters, as Python does in literals: ``\\x1b``, ``\\r``, ``\\u202e``.

    Strings in files may be anybody's, and a terminal acts on such characters: it clears lines, or
    turns the direction of writing. What counts is ``str.isprintable``.

    Args:
        text: anything.
        has_lines: leave line feeds and tabs as they are.
    """
    if text.isprintable():
        return text
    kept = _OF_LINES if has_lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text)
