"""One rank dies."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from faults.moments import IN_FORWARD, at


@at(IN_FORWARD)
def read_labels() -> NoReturn:
    raise ValueError("label 10 is not one of 0 to 9")


@at(IN_FORWARD)
def read_settings() -> None:
    """Cleans up with the others, who never come there."""
    try:
        {"width": 16}["depth"]
    finally:
        dist.barrier()


@at(IN_FORWARD)
def call_extension() -> None:
    ctypes.string_at(0)


@at(IN_FORWARD)
def abort_in_extension() -> None:
    ctypes.CDLL(None).abort()


@at(IN_FORWARD)
def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@at(IN_FORWARD)
def leave_at_once() -> None:
    os._exit(3)


@at(IN_FORWARD)
def load_vocabulary() -> None:
    """A thousand terabytes."""
    torch.empty(1 << 50, dtype=torch.uint8)


@at(IN_FORWARD)
def open_many_files() -> None:
    """Opens files without closing them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    files = []
    while True:
        files.append(Path("/dev/null").open())  # noqa: SIM115


@at(IN_FORWARD)
def write_to_full_disk() -> None:
    with Path("/dev/full").open("wb") as file:
        torch.save(torch.zeros(100), file)
