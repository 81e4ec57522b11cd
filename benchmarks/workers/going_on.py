"""What the two scripts of ``recovery.py`` and ``host_loss.py`` share: the data, and the notes by
which those follow them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from tree import SEQUENCES, TOKENS, WORDS

STEPS_OF_EPOCH = 100


class Notes:
    """A file that every process appends lines to: what, a number, its process id, and the time
    since 1970."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, number: int, time_s: float | None = None) -> None:
        now = time.time() if time_s is None else time_s
        os.write(self._fd, f"{what} {number} {os.getpid()} {now:.6f}\n".encode())


def make_data(world_size: int) -> TensorDataset:
    shape = (STEPS_OF_EPOCH * world_size * SEQUENCES, TOKENS)
    tokens, targets = torch.randint(WORDS, (2, *shape), generator=torch.Generator().manual_seed(1))
    return TensorDataset(tokens, targets)
