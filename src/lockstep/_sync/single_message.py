"""Small gradients in one message with the weights and values of their phase.

A message has a latency however short it is: tens of microseconds between processes of one machine,
and several times that on a network or a virtual machine. At the end of each phase the ranks
exchange what they have recorded. If all gradients are small they go into the same message.

::

    | row of float64 | node 0 of bucket 0 |gap| node 1 of bucket 0 |gap| ... |    bytes of one rank
    0                                      8k                       8m

A phase of a small model then costs one message instead of two or more. Every rank receives all
nodes of all ranks and adds them itself, (W - 1) times the bytes: hence the limit of ``exact``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep._world.comm.short import all_gather_short

_ALIGNED = 8  # bytes: a tensor can be viewed as float64 only where it begins at a multiple of 8


@torch.no_grad()
def gather_in_one_message(row: Sequence[float], tensors: Sequence[Tensor]) -> tuple[list[list[float]], list[list[Tensor]]]:
    """Gathers a row of numbers and some flat tensors from each rank, in one collective.

    Every rank must call it, with rows of equal length, and equally many tensors of the same lengths
    and dtypes, on the CPU.

    Returns:
        The rows by rank, and for each tensor the tensors of all ranks, in newly allocated memory.
    """
    head = torch.tensor(row, dtype=torch.float64)
    sizes = [head.nbytes, *(-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors)]
    message = torch.zeros(sum(sizes), dtype=torch.uint8)
    for space, tensor in zip(torch.split(message, sizes), (head, *tensors), strict=True):
        space[: tensor.nbytes] = tensor.view(torch.uint8)
    heads, *bodies = torch.split(all_gather_short(message), sizes, dim=1)
    gathered = [
        [data[: tensor.nbytes].view(tensor.dtype) for data in body] for body, tensor in zip(bodies, tensors, strict=True)
    ]
    return heads.view(torch.float64).tolist(), gathered
