"""Explains PyTorch's cryptic errors: what happened, with the names that the error lacks, the
consequence and the remedy.

Called in a worker whose script has failed, before it reports that to its launcher. Nothing here
communicates or uses a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep._base.errors import LockstepError
from lockstep._tools.explain.errors import ddp, loop, processes
from lockstep._tools.explain.errors.row import Row
from lockstep._tools.explain.errors.scene import Scene

ROWS: tuple[Row, ...] = (*ddp.ROWS, *processes.ROWS, *loop.ROWS)
"""The first row that matches an error, and has an explanation, explains it."""

_MOST_ERRORS = 20
_MOST_CHARACTERS = 100_000


def explain_error(error: BaseException) -> str:
    """An explanation of an uncaught error, in one or more paragraphs; empty: it is unknown, or
    needs none. Never raises."""
    try:
        if not isinstance(error, Exception):
            return ""  # Ctrl-C, whatever it has interrupted
        errors = list(_related(error))
        if any(isinstance(related, LockstepError) for related in errors):
            return ""  # explained already
        for related in errors:
            if words := _explained(related):
                return (
                    words if related is error or _explained(error) else f"(The {type(related).__name__} underneath.) {words}"
                )
    except Exception:  # raised by a user's class: the error itself matters more
        return ""
    return ""


def _explained(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return ""
    scene = Scene(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    for row in ROWS:
        match = row.pattern.search(scene.text[:_MOST_CHARACTERS]) if kinds & row.kinds else None
        if match is not None and (words := row.words(match, scene)):
            return words
    return ""


def _related(error: BaseException) -> Iterator[BaseException]:
    """The error and its origins: the deepest cause first, then the errors that were being handled
    when it was raised."""
    handled: BaseException | None = error
    for _ in range(_MOST_ERRORS):
        if handled is None:
            return
        causes = [handled]
        while causes[-1].__cause__ is not None and len(causes) < _MOST_ERRORS:
            causes.append(causes[-1].__cause__)
        yield from reversed(causes)
        handled = None if causes[-1].__suppress_context__ else causes[-1].__context__
