"""One rank hangs in its script."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from faults.moments import BEFORE_JOINING, IN_FORWARD, ON_ALL_RANKS, at

_OPEN: list[Any] = []
_LOCKED = Path("index.lock")


@at(BEFORE_JOINING)
def wait_for_data() -> None:
    """The other ranks wait to meet this one."""
    time.sleep(3600)


@at(IN_FORWARD)
def wait_for_licence() -> None:
    time.sleep(3600)


@at(IN_FORWARD)
def parse_caption() -> None:
    """Keeps the interpreter lock for hours in a regular expression that backtracks."""
    re.match(r"(a+)+$", "a" * 60 + "b")


@at(IN_FORWARD)
def resize_images() -> None:
    """C code that never releases the interpreter, and waits."""
    ctypes.PyDLL(None).sleep(3600)


@at(IN_FORWARD)
def resize_in_thread() -> None:
    """The same in a thread, while the main one is at its own line."""
    threading.Thread(target=resize_images, name="resize", daemon=True).start()
    time.sleep(3600)


@at(IN_FORWARD)
def update_cache() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@at(IN_FORWARD)
def wait_for_cache() -> None:
    """A thread of this process keeps the lock."""
    lock = threading.Lock()

    def fill_cache() -> None:
        with lock:
            time.sleep(3600)

    threading.Thread(target=fill_cache, name="fill-cache", daemon=True).start()
    time.sleep(0.5)
    lock.acquire()


@at(ON_ALL_RANKS)
def lock_index(is_culprit: bool) -> None:
    """The next rank has the file's lock, and keeps it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    file = _LOCKED.open("a")
    _OPEN.append(file)
    if (rank + world_size - 1) % world_size == int(sys.argv[2]):
        fcntl.flock(file, fcntl.LOCK_EX)
    dist.barrier()
    if is_culprit:
        fcntl.flock(file, fcntl.LOCK_EX)


@at(IN_FORWARD)
def read_queue() -> None:
    """Waits for a queue whose producer has exited."""
    queue.Queue[int]().get()


@at(IN_FORWARD)
def map_in_dead_pool() -> None:
    """A process of the pool was killed, for lack of memory say, and what it had taken is never
    done."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(_use_all_memory, range(2))


def _use_all_memory(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@at(IN_FORWARD)
def read_control_file() -> None:
    """Reads a pipe into which no process writes."""
    path = Path(tempfile.mkdtemp(), "control")
    os.mkfifo(path)
    path.read_text()


@at(IN_FORWARD)
def refine_boxes() -> None:
    while True:
        pass


@at(IN_FORWARD)
def poll_for_labels() -> None:
    """Waits for a file that no process creates."""
    while not os.path.lexists("/nowhere/labels"):
        time.sleep(0.2)


@at(IN_FORWARD)
def save_weights() -> None:
    """Writes into a pipe that no process reads."""
    path = Path(tempfile.mkdtemp(), "weights")
    os.mkfifo(path)
    torch.save(torch.zeros(7), path)


@at(IN_FORWARD)
def call_preprocessor() -> None:
    """Another program hangs."""
    subprocess.run(["sleep", "3600"], check=True)


@at(IN_FORWARD)
def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
