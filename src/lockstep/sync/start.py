"""Every rank begins with the parameters and buffers of rank 0."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def take_from_rank_0(model: nn.Module) -> None:
    """Give the model the parameters and buffers that it has on rank 0, to the bit. Every rank must call it."""
    for tensor in (*model.parameters(), *model.buffers()):
        # As bytes of a contiguous copy: there are dtypes and memory orders that cannot be sent as they are.
        value = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(value.view(-1).view(torch.uint8), src=0)
        tensor.copy_(value)
