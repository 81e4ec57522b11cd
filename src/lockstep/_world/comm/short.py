"""Gathering short messages from all ranks in few steps."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep._world.comm.collectives import all_gather_flat

_FEW = 8
"""The number of ranks below which PyTorch's own all-gather is as fast, and faster for messages of
16 KB (2 processes: 0.66 of the time). For some numbers it takes 2.2 times as long with 8 processes,
and 3.7 times with 16."""
# Above the tags of `_sync/exchange.py`, which begin at 1 << 30 and are 2 * (1 << 24) = 1 << 25 in
# number.
_FIRST_TAG = (1 << 30) + (1 << 28)


def all_gather_short(mine: Tensor) -> Tensor:
    """Gathers a short tensor from each rank of the run: of many ranks in ``log2 W`` messages rather
    than W - 1.

    A message has a latency, however short it is, and Gloo's own all-gather passes all of them round
    a ring. Here a rank that has its own tensor and the tensors of the next ``k - 1`` gets the ``k``
    after them in one message (Bruck and others, "Efficient Algorithms for All-to-All Communications
    in Multiport Message-Passing Systems", 1997). Every rank must call it; it blocks until all have.
    With 8 ranks, rank 0 gets 7 tensors in 3 messages::

        step 0   has 0        gets 1        from rank 1, sends 0        to rank 7
        step 1   has 0 to 1   gets 2 to 3   from rank 2, sends 0 to 1   to rank 6
        step 2   has 0 to 3   gets 4 to 7   from rank 4, sends 0 to 3   to rank 4

    Args:
        mine: this rank's: shape ``(n,)``, on the CPU, with the same n and dtype on every rank.

    Returns:
        Shape ``(W, n)``, in rank order.
    """
    rank, size, length = dist.get_rank(), dist.get_world_size(), mine.numel()
    if size < _FEW:
        gathered = mine.new_empty(size * length)
        all_gather_flat(gathered, mine)
        return gathered.view(size, length)
    gathered = mine.new_empty(size * length)  # of this rank and those after it
    gathered[:length] = mine
    known, step = 1, 0
    while known < size:
        # The last message is shorter if W is no power of two: with 12 ranks 1, 2, 4, then 4 of 8.
        more = min(known, size - known)
        works = [
            dist.irecv(gathered[known * length : (known + more) * length], (rank + known) % size, tag=_FIRST_TAG + step),
            dist.isend(gathered[: more * length], (rank - known) % size, tag=_FIRST_TAG + step),
        ]
        # In a loop, so that ranks that wait have the same line in their stacks, whichever message
        # is late.
        for work in works:
            assert work is not None
            work.wait()
        known, step = known + more, step + 1
    # Row i is of rank (rank + i) % W here, and of rank i after the rotation.
    return torch.roll(gathered.view(size, length), rank, 0)
