"""Broadcasting the initial parameters and buffers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def broadcast_from_rank_0(model: nn.Module) -> None:
    """Copys the model's parameters and buffers from rank 0, bit for bit. Every rank must call
    it."""
    for tensor in (*model.parameters(), *model.buffers()):
        # As bytes of a contiguous copy: some dtypes and memory orders cannot be sent directly.
        value = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(value.view(-1).view(torch.uint8), src=0)
        tensor.copy_(value)
