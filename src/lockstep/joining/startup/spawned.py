"""Whether the script runs once more because ``multiprocessing`` has imported it in a process of its own."""

from __future__ import annotations

import inspect
import multiprocessing

from lockstep.base.errors import UsageError


def check_not_imported() -> None:
    """Check that ``join`` was not called while ``multiprocessing`` imports the script: ``spawn`` and ``forkserver`` do so in
    each process that they start, a loader's workers among them, to find the functions and classes that these need.

    Raises:
        UsageError: it was. The process would wait for the others of a run that it is no part of.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__mp_main__":
            raise UsageError(
                f"join() in {multiprocessing.current_process().name!r}, a process that multiprocessing has started from this "
                f"script (a loader's worker, with multiprocessing_context='spawn' or 'forkserver'): it imports "
                f"{frame.f_code.co_filename} again, with all that stands at its top level. Move the training into a function, "
                'and call it under a main guard: `if __name__ == "__main__": main()`. Classes and functions that workers need '
                "stay at the top level."
            )
        frame = frame.f_back
