"""The sums of the bits of whole tensors, of which each rank may have a part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep._base.digest import UnreadSums, bit_sum_of_part, unread_sums
from lockstep._world.comm.dtensors import is_cut, is_dtensor, own_rows, sum_over_ranks, to_local


def unread_bit_sums(tensors: Sequence[Tensor]) -> UnreadSums:
    """``unread_sums`` of whole tensors, also of tensors that are cut over the ranks (see
    ``is_cut``), with one message for all of these. Then every rank must call it, with the same
    tensors; otherwise it is local."""
    distributed = {number: tensor for number, tensor in enumerate(tensors) if is_dtensor(tensor)}
    sums = unread_sums([to_local(tensor) for tensor in tensors] if distributed else tensors)
    cut = [number for number, tensor in distributed.items() if is_cut(tensor)]
    if cut:
        of_locals = sums.scalars()
        own = [_of_part(tensors[number], of_locals[number]) for number in cut]
        sums.put(sum_over_ranks(torch.stack(own), tensors[cut[0]]), cut)
    return sums


def _of_part(tensor: Tensor, of_local: Tensor) -> Tensor:
    """Returns what this rank's part adds to the sum. ``of_local``: ``bit_sum`` of the part."""
    row_bytes = math.prod(tensor.shape[1:]) * tensor.itemsize
    rows = own_rows(tensor)
    begin, end, whole_bytes = rows.start * row_bytes, rows.stop * row_bytes, len(tensor) * row_bytes
    if begin % 8 == 0 and (end % 8 == 0 or end == whole_bytes):
        return of_local
    # In bytes, since the part begins or ends in the middle of a 64-bit word of the whole tensor: 3
    # rows of one float16 on rank 0 end at byte 6.
    return bit_sum_of_part(to_local(tensor), begin, whole_bytes)
