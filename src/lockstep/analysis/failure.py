"""One line that says why a run failed, from its output. Pure."""

from __future__ import annotations

import re
import signal

_LONGEST = 300

# What launchers put before a worker's line: "[rank0]: ", "[default0]:", "rank 1 | ", "1: ".
_PREFIX = re.compile(r"^(\[[^\]\n]{1,40}\]:? ?|rank \d+[^|:\n]{0,40}[|:] ?|\d+[:|] ?)")
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(: .*)?$")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_ERROR = re.compile(r"^(\S+: )?[Ee]rror: ")


def first_error(output: str, exit_status: int | None) -> str:
    """The first error in the output, on one line: an exception (the last of a chain), else an ``Error:`` line, else
    the last line, with how the process ended if there is nothing to show."""
    lines = [_PREFIX.sub("", line) for line in output.splitlines()]
    found = _first_exception(lines) or next((line for line in lines if _ERROR.match(line)), None)
    if found is None:
        found = next((line.strip() for line in reversed(lines) if line.strip()), "")
        ending = how_it_ended(exit_status)
        found = f"{ending}; its last line: {found}" if found else f"{ending} without a word"
    return found if len(found) <= _LONGEST else found[: _LONGEST - 1] + "…"


def how_it_ended(exit_status: int | None) -> str:
    """An exit status in words."""
    if exit_status is None or exit_status >= 0:
        return f"ended with exit status {exit_status}"
    try:
        return f"was killed by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"was killed by signal {-exit_status}"


def _first_exception(lines: list[str]) -> str | None:
    found, inside, chained = None, False, False
    for line in lines:
        if line.startswith("Traceback (most recent call last):"):
            if found is not None and not chained:
                break  # another process's
            inside, chained = True, False
        elif inside and _EXCEPTION.match(line):
            found, inside = line, False
        elif found is not None and line.startswith(_CHAINED):
            chained = True
    return found
