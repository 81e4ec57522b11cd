"""Determines why a program failed, in one line and in a few. Pure.

Programs record the reason in a file (see ``_events/failure.py``). For a program that failed before
it could, there is its last output."""

from __future__ import annotations

import signal

_LONGEST = 300
_LAST_LINES = 20


def in_one_line(error: str) -> str:
    """Returns the beginning of an error."""
    error = error.partition("\n")[0]
    return error if len(error) <= _LONGEST else error[: _LONGEST - 1] + "…"


def describe_silent_failure(output: str, exit_status: int) -> tuple[str, str]:
    """For a program that recorded no reason: returns how it exited with its last line, which is an
    exception's message; and its last lines."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    said = f"; its last line: {lines[-1].strip()}" if lines else " without a message"
    return f"{how_it_ended(exit_status)}{said}", "\n".join(lines[-_LAST_LINES:])


def how_it_ended(exit_status: int) -> str:
    """Returns an exit status as text."""
    if exit_status >= 0:
        return f"exited with status {exit_status}"
    try:
        return f"was killed by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"was killed by signal {-exit_status}"
