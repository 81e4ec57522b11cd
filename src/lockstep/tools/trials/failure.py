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
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(: .*)?$")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_OTHERS = re.compile(r"^([EWI]\d{4} \d\d:|=+$)")  # what torchrun says after it
_ERROR = re.compile(r"^(\S+: )?[Ee]rror: ")


def first_error(output: str, exit_status: int | None) -> str:
    """The first error in the output, on one line: an exception (the last of a chain), else an ``Error:`` line, else the last
    line, with how the process ended if there is nothing to show."""
    lines = [_PREFIX.sub("", line) for line in output.splitlines()]
    error = _first_exception(lines) or next((line for line in lines if _ERROR.match(line)), None)
    if error is None:
        error = next((line.strip() for line in reversed(lines) if line.strip()), "")
        ending = how_it_ended(exit_status)
        error = f"{ending}; its last line: {error}" if error else f"{ending} without any message"
    return in_one_line(error)


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
    lines = [_PREFIX.sub("", line).rstrip() for line in output.splitlines()]
    begins = [index for index, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if begins:
        lines = lines[begins[0] :]
        chained = {
            index
            for index, line in enumerate(lines)
            if line.startswith(_TRACEBACK)
            and any(before.startswith(_CHAINED) for before in lines[max(0, index - 2) : index])
        }
        ends = (p for p, line in enumerate(lines) if p and (line.startswith(_TRACEBACK) or _OTHERS.match(line)))
        lines = lines[: next((index for index in ends if index not in chained), None)]
    else:
        first = next((index for index, line in enumerate(lines) if _ERROR.match(line)), None)
        lines = lines[-20:] if first is None else lines[first : first + 20]
    return in_few_lines("\n".join(lines))


def how_it_ended(exit_status: int | None) -> str:
    """An exit status in words."""
    if exit_status is None or exit_status >= 0:
        return f"ended with exit status {exit_status}"
    try:
        return f"was killed by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"was killed by signal {-exit_status}"


def _first_exception(lines: list[str]) -> str | None:
    exception, inside, chained = None, False, False
    for line in lines:
        if line.startswith(_TRACEBACK):
            if exception is not None and not chained:
                break  # another process's
            inside, chained = True, False
        elif inside and _EXCEPTION.match(line):
            exception, inside = line, False
        elif exception is not None and line.startswith(_CHAINED):
            chained = True
    return exception
