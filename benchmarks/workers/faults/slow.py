"""One rank is slow."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from faults.moments import EACH_BACKWARD, EACH_FORWARD, EACH_STEP, at


@at(EACH_FORWARD)
def slow_forward() -> None:
    time.sleep(0.03)


@at(EACH_BACKWARD)
def clip_slowly() -> None:
    time.sleep(0.03)


@at(EACH_STEP)
def write_images(step: int) -> None:
    time.sleep(0.03)


@at(EACH_STEP)
def draw_picture(step: int) -> None:
    """Is slow at one of two lines, alternately."""
    if step % 2:
        time.sleep(0.04)
    else:
        _compress_picture()


def _compress_picture() -> None:
    end = time.monotonic() + 0.04
    while time.monotonic() < end:
        sum(range(1000))


@at(EACH_STEP)
def store_on_slow_disk(step: int) -> None:
    """As a disk would do it whose cache is full."""
    if step % 10:
        return
    sync = os.fsync
    os.fsync = lambda file: (time.sleep(3), sync(file))[1]  # type: ignore[assignment]
    try:
        with Path(f"state-{dist.get_rank()}.pt").open("wb") as file:
            torch.save(torch.zeros(100), file)
            file.flush()
            os.fsync(file.fileno())
    finally:
        os.fsync = sync


class SlowFile:
    """On an object store, say."""

    def __init__(self, path: str) -> None:
        self.file = Path(path).open("wb")  # noqa: SIM115

    def write(self, content: bytes) -> int:
        time.sleep(0.1)
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()


@at(EACH_STEP)
def store_in_slow_file(step: int) -> None:
    if step % 10 == 0:
        torch.save(torch.zeros(100), SlowFile(f"state-{dist.get_rank()}.pt"))


def decode_slowly() -> None:
    time.sleep(0.004)


class SlowLayer(torch.autograd.Function):
    """Takes its time in the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.03)
        return gradient
