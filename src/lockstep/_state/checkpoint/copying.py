"""Copies memory with all cores of this process, while training is paused.

One core copies much less than the memory could deliver, and cores that the training does not use
have nothing else to do in a pause. A copy computes nothing, so the number of threads cannot change
its bits.

The threads share pieces of memory, not tensors: a large embedding would keep one of them busy when
all others are done. They are none of PyTorch's own (``Tensor.copy_`` uses only as many as the
training), whose barriers wait for each other where several processes share the cores.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from lockstep._state.checkpoint.files import Bytes
from lockstep._world.machine.cores import num_cores

_PIECE_BYTES = 1 << 24
_MOST_THREADS = 8
"""A memory controller is busy with about as many."""

Pieces = Iterable[tuple[Bytes, Bytes]]
"""Pairs of equally large memory: where to, and where from."""


def is_memory(tensor: Tensor) -> bool:
    """Returns whether the elements of a tensor are its memory, in their order: whether copying the
    bytes copies the tensor."""
    # A subclass may compute its elements, and conjugation may be a flag that is not yet applied.
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def pieces_of(copy: Tensor, tensor: Tensor) -> Iterator[tuple[Bytes, Bytes]]:
    """Yields the memory of a tensor piece by piece, with that of its copy. Both must be memory, of
    one dtype and shape."""
    into, of = _bytes(copy), _bytes(tensor)
    for start in range(0, len(of), _PIECE_BYTES):
        yield into[start : start + _PIECE_BYTES], of[start : start + _PIECE_BYTES]


def copy_pieces(pieces: Pieces) -> None:
    """Copies, and returns when all is copied."""
    left = deque(pieces)
    num_bytes = sum(len(of) for _, of in left)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                try:
                    into, of = left.popleft()
                except IndexError:
                    return
                np.copyto(into, of)  # releases the GIL
        except BaseException as error:  # in a thread it would be printed, and the copy taken for whole
            errors.append(error)

    helpers: list[threading.Thread] = []
    try:
        # A thread for each piece's worth, so that a small state needs none.
        for _ in range(min(num_cores(), _MOST_THREADS, num_bytes // _PIECE_BYTES) - 1):
            helper = threading.Thread(target=work, name="lockstep-copy", daemon=True)
            # Without threads (at the end of the interpreter, or by a limit) this one does all.
            with contextlib.suppress(RuntimeError):
                helper.start()
                helpers.append(helper)
        work()
    finally:
        # Also after Ctrl-C: a helper that went on would write old values into the next copy.
        left.clear()
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[0]


def _bytes(tensor: Tensor) -> Bytes:
    return tensor.view(-1).view(torch.uint8).numpy()
