"""Explains PyTorch's cryptic errors: what happened, with the names that the error lacks, the consequence and the remedy.

Called in a worker whose script has failed, before it reports that to its launcher. Nothing here communicates or uses a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.base.errors import LockstepError
from lockstep.tools.explain.errors import ddp, loop, nccl, processes
from lockstep.tools.explain.errors.row import Row
from lockstep.tools.explain.errors.scene import Scene

ROWS: tuple[Row, ...] = (*ddp.ROWS, *nccl.ROWS, *processes.ROWS, *loop.ROWS)
"""The first row that matches an error, and has an explanation, explains it."""

_MOST_ERRORS = 20
_MOST_CHARACTERS = 100_000


def in_words(error: BaseException) -> str:
    """An explanation of an uncaught error, in one or more paragraphs; empty: it is unknown, or needs none. Never raises."""
    try:
        if not isinstance(error, Exception) and not hasattr(error, "exceptions"):
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
    """The error and its origins: the deepest cause first, then the errors that were being handled when it was raised."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MOST_ERRORS:
        causes = [waiting.pop(0)]
        while causes[-1].__cause__ is not None and len(causes) < _MOST_ERRORS:
            causes.append(causes[-1].__cause__)
        for cause in reversed(causes):
            if id(cause) not in seen:
                seen.add(id(cause))
                yield cause
                parts = getattr(cause, "exceptions", ())  # of an exception group
                waiting += [part for part in parts if isinstance(part, BaseException)] if isinstance(parts, tuple) else []
        last = causes[-1]
        if last.__context__ is not None and not last.__suppress_context__ and id(last.__context__) not in seen:
            waiting.append(last.__context__)
