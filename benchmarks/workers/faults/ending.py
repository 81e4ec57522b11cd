"""The script is over: what keeps the process of one rank from ending."""

from __future__ import annotations

import atexit
import multiprocessing
import queue
import threading
import time

from faults.moments import AT_THE_END, at


@at(AT_THE_END)
def leave_thread() -> None:
    """Nobody tells it that there is nothing more to upload."""
    threading.Thread(target=queue.Queue[int]().get, name="upload").start()


@at(AT_THE_END)
def leave_exit_handler() -> None:
    atexit.register(flush_metrics)


def flush_metrics() -> None:
    time.sleep(3600)


@at(AT_THE_END)
def leave_child() -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), name="renderer").start()


@at(AT_THE_END)
def leave_full_queue() -> None:
    """Its own thread waits until what was put into it has gone through a pipe, which nobody
    reads."""
    multiprocessing.Queue().put(bytes(1 << 20))
