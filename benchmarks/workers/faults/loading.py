"""The data of one rank: its samples are read by a loader worker."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import torch

from faults.moments import AT_STEP, BY_SAMPLE, at, shows
from faults.slow import decode_slowly

AT_SAMPLE = 150
"""Read by this worker."""
IN_ITS_LOADER = ("fill_shared_memory", "use_long_temporary_path", "read_first_slowly")
"""Others for which there is a worker."""


@at(BY_SAMPLE)
def fetch_from_archive() -> None:
    time.sleep(3600)


@at(BY_SAMPLE)
def write_past_shared_memory() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


@at(BY_SAMPLE)
def kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@at(BY_SAMPLE)
def stop_worker() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@at(BY_SAMPLE)
def backtrack_in_worker() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


@at(BY_SAMPLE)
def lock_archive() -> None:
    """Waits for a file lock that another descriptor of this process has."""
    with Path("archive.lock").open("a") as first, Path("archive.lock").open("a") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)


@at(BY_SAMPLE)
def read_broken_file() -> NoReturn:
    raise OSError("image 150 is truncated")


def use_long_temporary_path() -> None:
    """A scratch directory of a job, in which no socket can have a name."""
    path = Path.cwd() / ("job-" + "0" * 90)
    path.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(path)
    shows()


class Samples(torch.utils.data.Dataset[Any]):
    """A dataset of numbers, one of which may hang, kill, be slow or be NaN, by ``fault``."""

    def __init__(self, fault: str | None, count: int) -> None:
        self.fault, self.count, self.num_read = fault, count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self.num_read += 1
        if self.num_read == AT_SAMPLE and self.fault in BY_SAMPLE:
            shows()
            BY_SAMPLE[self.fault]()
        if self.fault == "decode_slowly":
            shows()
            decode_slowly()
        if self.fault == "read_first_slowly" and self.num_read == 1:
            time.sleep(16)
        x = torch.full((8,), index / self.count)
        if self.fault == "not_a_number" and index % 200 == 199:
            x[3] = torch.nan
        return x, x.sum().reshape(1)


class Stacked:
    """Makes batches in the worker's own memory, unlike PyTorch's function: its other thread moves
    them to shared memory.

    Batches become large with that ``fault``.
    """

    def __init__(self, fault: str | None) -> None:
        self.fault, self.count = fault, 0

    def __call__(self, samples: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        x, y = (torch.stack(column) for column in zip(*samples, strict=True))
        self.count += 1
        if self.fault == "fill_shared_memory" and self.count > AT_STEP:
            shows()
            y = y + torch.zeros(1 << 21)
        return [x, y]


def loader_options(name: str, fault: str | None) -> dict[str, Any]:
    """Of the loader, on all ranks."""
    if fault == "use_long_temporary_path":
        use_long_temporary_path()
    collate = {"collate_fn": Stacked(fault)} if name == "fill_shared_memory" else {}
    return {"num_workers": int(name in BY_SAMPLE or name in IN_ITS_LOADER), **collate}
