"""The sums of the bits of whole tensors, of which each rank may have a part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep._base.digest import bit_sum, bit_sum_of_part
from lockstep._world.comm.dtensors import is_cut, own_rows, sum_over_ranks, to_local


def unread_bit_sums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """``bit_sum`` of whole tensors, also of tensors that are cut over the ranks (see ``is_cut``),
    with one message for all of these. Then every rank must call it, with the same tensors;
    otherwise it is local."""
    sums = [_of_part(tensor) if is_cut(tensor) else bit_sum(to_local(tensor)) for tensor in tensors]
    cut = [number for number, tensor in enumerate(tensors) if is_cut(tensor)]
    if cut:
        totals = sum_over_ranks(torch.stack([sums[number] for number in cut]), tensors[cut[0]])
        for number, total in zip(cut, totals, strict=True):
            sums[number] = total
    return sums


def _of_part(tensor: Tensor) -> Tensor:
    row_bytes = math.prod(tensor.shape[1:]) * tensor.itemsize
    # In bytes, since a part may begin in the middle of a 64-bit word of the whole tensor: 3 rows of
    # one float16 on rank 0 end at byte 6.
    return bit_sum_of_part(to_local(tensor), own_rows(tensor).start * row_bytes, len(tensor) * row_bytes)
