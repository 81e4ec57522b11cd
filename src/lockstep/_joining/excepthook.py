"""Prints and explains an uncaught error like a launcher of lockstep does, in a process without such
a launcher."""

from __future__ import annotations

import sys
from types import TracebackType

from lockstep._base import process_observer
from lockstep._world.environment import failure_file, shows_tracebacks
from lockstep._world.machine.open_files import free_spare, hold_spare


def install_excepthook() -> None:
    """Installs a hook that prints and explains an uncaught error like ``lockstep run`` does, unless
    the launcher or the script has installed a hook."""
    if sys.excepthook is sys.__excepthook__:
        hold_spare()
        sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    free_spare()
    try:
        _tell(kind, error, trace)
    except Exception:  # no descriptors, no memory: the script's error is what matters
        sys.__excepthook__(kind, error, trace)


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Only here: needed by failures alone.
    import traceback

    from lockstep._base.tracebacks.excerpt import excerpt, first_line, plain_message, without_noise
    from lockstep._events.failure import FailureRecord

    text = without_noise("".join(traceback.format_exception(kind, error, trace)))
    process_observer.tell(lambda observer: observer.fail(text))
    words = process_observer.explain_error(error)
    if isinstance(error, KeyboardInterrupt) or shows_tracebacks() or not (frames := excerpt(error)):
        sys.__excepthook__(kind, error, trace)
    else:
        message = first_line(plain_message(error)) if words else plain_message(error)
        print(f"error: {kind.__qualname__}: {message}\n{frames}", file=sys.stderr, flush=True)
    if words:
        print(f"\nExplanation: {words}", file=sys.stderr, flush=True)
    summary = f"{kind.__qualname__}: {first_line(plain_message(error))}"
    told = f"error: {summary}\n{excerpt(error) or text}" + (f"\n\nExplanation: {words}" if words else "")
    FailureRecord(summary=summary, report=told).write(failure_file())
