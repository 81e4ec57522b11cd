"""An exception, and those that it follows from. Pure."""

from __future__ import annotations

from collections.abc import Iterator


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and those from which or during whose handling it was raised, as tracebacks show them: the oldest last."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def message_of(error: object) -> str:
    """The message of an exception, whatever the user's class does."""
    try:
        return str(error)
    except Exception:
        return "(its message could not be made)"
