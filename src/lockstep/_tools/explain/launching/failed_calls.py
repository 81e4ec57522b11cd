"""Why communication has failed on all ranks that failed: they may have called different
collectives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lockstep._base.reports import MISMATCH, Report
from lockstep._base.tracebacks.frames import UNSEEN, Frame
from lockstep._launch import failures
from lockstep._launch.failures import Failure
from lockstep._tools.explain.frames import users_location
from lockstep._tools.explain.launching.compared_calls import ComparedCalls
from lockstep._tools.explain.mismatch import at_failure, describe_call
from lockstep._tools.explain.rank_reports import DEFAULT_GROUP
from lockstep._tools.explain.reading import read_records

_LINE = re.compile(r'^ +File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)


def report_of(reported: Sequence[Failure], calls: ComparedCalls, directory: Path) -> Report | None:
    """Which collectives ranks have called whose communication has failed; None: no sign that they
    differ.

    Args:
        reported: the failures.
        calls: of the ranks.
        directory: of their black boxes.
    """
    stacks = {failure.rank: frames_of(failure) for failure in reported}
    has_aborted = any(map(failures.has_aborted, reported))
    latest = calls.latest(read_records(directory))
    found = at_failure(latest, stacks, has_aborted=has_aborted)
    if found is None:
        return None
    first, lines = found
    places = {rank: at for rank, stack in stacks.items() if (at := users_location(stack))}
    called = {} if first is None else first.calls
    # of others they are not known
    members = latest if first is not None and first.group == DEFAULT_GROUP else called
    return Report(
        kind=MISMATCH,
        text="\n".join(lines),
        ranks=() if first is None else first.odd_among(len(members)),
        cause="" if first is None else first.aspect,
        places=places | {rank: call.at for rank, call in called.items() if call.at},
        calls={rank: describe_call(call) for rank, call in called.items()},
    )


def frames_of(failure: Failure) -> list[Frame]:
    """The stack that a failure's text shows, innermost frame first."""
    _, is_exception, trace = failure.text.rpartition("Traceback (most recent call last):")
    frames = [(file, int(line), name) for file, line, name in _LINE.findall(trace) if file != UNSEEN]
    return frames[::-1] if is_exception else frames
