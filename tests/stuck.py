"""Where processes stand that do not get on."""

import contextlib
import faulthandler
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from lockstep._base.stopping import catches


def telling(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn``, in a process that writes the stacks of all its threads to standard error at SIGUSR2;
    its children do so too."""
    return functools.partial(_tell_and_call, fn)


def _tell_and_call(fn: Callable[..., Any], *args: Any) -> Any:
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    return fn(*args)


@contextlib.contextmanager
def told_after(seconds: float, pid: int) -> Iterator[None]:
    """If the block takes longer, all that come from process ``pid`` are told to write down where
    they stand."""

    def tell() -> None:
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if catches(process.pid, signal.SIGUSR2):  # others would be ended by it
                    process.send_signal(signal.SIGUSR2)

    timer = threading.Timer(seconds, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
