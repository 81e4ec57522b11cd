"""Faults after the end of the script, which keep the process of one rank alive."""

from __future__ import annotations

import atexit
import multiprocessing
import queue
import threading
import time

from faults.moments import AT_THE_END, at


@at(AT_THE_END)
def leave_thread() -> None:
    """Leaves a thread that waits for more files to upload."""
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
    """Leaves a queue whose thread waits until its items have passed a pipe that no process
    reads."""
    multiprocessing.Queue().put(bytes(1 << 20))
