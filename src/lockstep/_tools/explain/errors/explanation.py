"""Explains PyTorch's cryptic errors: what happened, with the names that the error lacks, the
consequence and the remedy.

Called in a worker whose script has failed, before it reports that to its launcher. Nothing here
communicates or uses a GPU: other ranks may have exited, and the error may be the GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lockstep._base.errors import LockstepError
from lockstep._tools.explain.errors import ddp, gpu, loop, processes
from lockstep._tools.explain.errors.row import Row
from lockstep._tools.explain.errors.scene import Scene

ROWS: tuple[Row, ...] = (*ddp.ROWS, *gpu.ROWS, *processes.ROWS, *loop.ROWS)
"""The first row that matches an error, and has an explanation, explains it."""


class Explanation(NamedTuple):
    """An explanation of an error."""

    family: str
    """The family of errors, as the documentation names it."""
    text: str
    """The explanation for the user."""
    underlying: str = ""
    """The type of the underlying error that is explained; empty: the error itself is."""


_MOST_ERRORS = 20
_MOST_CHARACTERS = 100_000


def explain_error(error: BaseException) -> str:
    """An explanation of an uncaught error, in one or more paragraphs; empty: the error is unknown,
    or clear. Never raises."""
    found = explain(error)
    if found is None:
        return ""
    return found.text if not found.underlying else f"(About the underlying {found.underlying}.) {found.text}"


def explain(error: BaseException) -> Explanation | None:
    """The explanation of an uncaught error; None: the error is unknown, or clear. Never raises."""
    try:
        if not isinstance(error, Exception):
            return None  # Ctrl-C, whatever it has interrupted
        errors = list(_related(error))
        if any(isinstance(related, LockstepError) for related in errors):
            return None  # lockstep's errors explain themselves
        for related in errors:
            if (found := _explained(related)) is not None:
                is_itself = related is error or _explained(error) is not None
                return found if is_itself else found._replace(underlying=type(related).__name__)
    except Exception:  # raised by a user's class: the error itself matters more
        return None
    return None


def _explained(error: BaseException) -> Explanation | None:
    if not isinstance(error, Exception):
        return None
    scene = Scene(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    for row in ROWS:
        match = row.pattern.search(scene.text[:_MOST_CHARACTERS]) if kinds & row.kinds else None
        if match is not None and (words := row.words(match, scene)):
            return Explanation(row.family, words)
    return None


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
