"""What a launcher of lockstep's says of an uncaught error, where there is none."""

from __future__ import annotations

import sys
from types import TracebackType


def explain_uncaught() -> None:
    """Have an uncaught error that is known be explained after its traceback, as ``lockstep run`` does; not where the launcher
    or the script has a hook of its own for them."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    from lockstep.explain.errors.words import in_words  # only here: needed by failures alone

    if words := in_words(error):
        print(f"\nIn words: {words}", file=sys.stderr, flush=True)
