"""Why a program failed, from its output: in one line, and whole. Pure.

For what fails before anything of lockstep's tells of it (see ``journal.failure``), and for logs: Python's tracebacks, and what
programs say of errors.
"""

from __future__ import annotations

import re
import signal

_LONGEST = 300
_MOST_LINES = 60

# What launchers put before a worker's line: "[rank0]: ", "[default0]:", "rank 1 | ", "1: ".
_PREFIX = re.compile(r"^(\[[^\]\n]{1,40}\]:? ?|rank \d+[^|:\n]{0,40}[|:] ?|\d+[:|] ?)")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_OTHERS = re.compile(r"^([EWI]\d{4} \d\d:|=+$)")  # what torchrun says after it
_ERROR = re.compile(r"^(\S+: )?[Ee]rror: ")


def first_error(output: str, exit_status: int | None) -> str:
    """The first error in the output, on one line: an exception (the last of a chain), else an ``Error:`` line, else the last
    line, with how the process ended if there is nothing to show."""
    lines = _lines_of_error(output)
    headers = [index for index, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if headers:  # whose frames are indented
        return in_one_line(next((line for line in lines[headers[-1] + 1 :] if line[:1].strip()), lines[-1]))
    if lines and _ERROR.match(lines[0]):
        return in_one_line(lines[0])
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    ending = how_it_ended(exit_status)
    return in_one_line(f"{ending}; its last line: {said}" if said else f"{ending} without any message")


def in_one_line(error: str) -> str:
    """The beginning of an error."""
    error = error.partition("\n")[0]
    return error if len(error) <= _LONGEST else error[: _LONGEST - 1] + "…"


def in_few_lines(error: str) -> str:
    """An error without the middle of a long one: of a deep traceback, what was called first and what failed last are left."""
    lines = error.strip().splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[:10], "  ...", *lines[-(_MOST_LINES - 11) :]]
    return "\n".join(lines)


def whole_error(output: str) -> str:
    """All of the first error in the output: a traceback with what it follows from, else what comes from ``Error:`` on, else the
    last lines."""
    return in_few_lines("\n".join(_lines_of_error(output)))


def _lines_of_error(output: str) -> list[str]:
    lines = [_PREFIX.sub("", line).rstrip() for line in output.splitlines()]
    begins = [index for index, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not begins:
        first = next((index for index, line in enumerate(lines) if _ERROR.match(line)), None)
        return lines[-20:] if first is None else lines[first : first + 20]
    for index in range(begins[0] + 1, len(lines)):
        is_anothers = index in begins and not any(line.startswith(_CHAINED) for line in lines[max(0, index - 2) : index])
        if is_anothers or _OTHERS.match(lines[index]):
            return lines[begins[0] : index]
    return lines[begins[0] :]


def how_it_ended(exit_status: int | None) -> str:
    """An exit status in words."""
    if exit_status is None or exit_status >= 0:
        return f"ended with exit status {exit_status}"
    try:
        return f"was killed by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"was killed by signal {-exit_status}"
