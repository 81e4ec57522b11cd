"""Errors of a rank whose loader's worker has died while the rank talked to it: which worker, and
what ended it.

PyTorch's own error, raised when the signal of the death arrives, contains both. A rank that meets
the closed connection first knows neither, and the signal's error may be raised where no one sees
it."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

_LOADER = "/torch/utils/data/dataloader.py"
_FETCHING = "_try_get_data"
_WAIT_S, _LOOKS = 0.05, 20
_OF_SHUTDOWN = (None, 0, -signal.SIGTERM)
"""Exit codes of workers that live, or that exited with their loader."""


def with_its_cause(error: BaseException) -> BaseException:
    """The error that names the worker, with the traceback of the user's loop; ``error`` itself if
    no worker has died. It may take a second: a worker's connections are closed before it is
    dead."""
    if not isinstance(error, (OSError, EOFError)) or not (workers := _workers_in(error.__traceback__)):
        return error
    try:
        for _ in range(_LOOKS):
            time.sleep(_WAIT_S)
            if died := next((worker for worker in workers if worker.exitcode not in _OF_SHUTDOWN), None):
                return _named(died).with_traceback(error.__traceback__)
    except RuntimeError as died:  # PyTorch's, by the signal
        return died.with_traceback(error.__traceback__)
    except Exception:  # a private attribute has moved
        return error
    return error


def _workers_in(trace: TracebackType | None) -> Sequence[Any]:
    """The processes of the loader that was fetching a batch. Private: nothing public has them."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == _FETCHING and code.co_filename.endswith(_LOADER):
            return tuple(getattr(trace.tb_frame.f_locals.get("self"), "_workers", ()))
        trace = trace.tb_next
    return ()


def _named(worker: Any) -> RuntimeError:
    """How PyTorch's own error describes the end of this loader worker."""
    if worker.exitcode < 0:
        how = f"is killed by signal: {signal.strsignal(-worker.exitcode)}. "
    else:
        how = f"exited unexpectedly with exit code {worker.exitcode}. "
    return RuntimeError(f"DataLoader worker (pid {worker.pid}) {how}")
