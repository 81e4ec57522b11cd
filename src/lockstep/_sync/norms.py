"""Norms of sharded gradients, bit-identical with the norms of the whole tensors.

A norm of slices put together would be rounded in other places, and differently for every number of
processes. So each gradient is gathered by one rank, another for each, which computes its norm: a
rank sends and receives 1/W of the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from lockstep._world.comm.dtensors import is_dtensor, rows_of, to_local

_MOST_BYTES = 64 << 20
"""The most bytes that a rank gathers together, unless a single gradient is larger."""


class WholeNorms:
    """A replacement inside ``torch.nn.utils.clip_grad_norm_``, which takes the norms of sharded
    gradients as wholes while it is open.

    Every script has its own name for that function, so what is replaced is what it calls inside.
    (PyTorch has no public name for it.)
    """

    def __init__(self) -> None:
        self._original: Callable[..., Tensor] = clip_grad._get_total_norm
        clip_grad._get_total_norm = self._total_norm
        nn.utils.get_total_norm = self._total_norm

    def _total_norm(self, tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, *args: Any, **options: Any) -> Tensor:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if any(map(is_dtensor, tensors)):
            # PyTorch takes the norm of a single number to be its magnitude
            tensors = _norms(tensors, float(norm_type))
        return self._original(tensors, norm_type, *args, **options)

    def close(self) -> None:
        """Restores PyTorch's own."""
        clip_grad._get_total_norm = self._original
        nn.utils.get_total_norm = self._original


@torch.no_grad()
def _norms(gradients: Sequence[Tensor], norm_type: float) -> list[Tensor]:
    """Returns the norm of each gradient, as a whole: scalars."""
    found: dict[int, Tensor] = {}
    sharded: dict[torch.dtype, list[int]] = {}
    for number, gradient in enumerate(gradients):
        if is_dtensor(gradient):
            sharded.setdefault(gradient.dtype, []).append(number)
        else:
            [found[number]] = torch._foreach_norm([gradient], norm_type)
    for dtype, numbers in sharded.items():
        norms = torch.zeros(len(gradients), dtype=torch.float64, device=to_local(gradients[numbers[0]]).device)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        by_size = sorted(numbers, key=lambda number: -gradients[number].numel())
        for rounds in _portions([by_size[i : i + world_size] for i in range(0, len(by_size), world_size)], gradients):
            # The r-th of each round is gathered by rank r. Rounds are of gradients of similar size
            # (sorted by size above), so that ranks gather about as much as each other.
            lists = [[some[r] for some in rounds if r < len(some)] for r in range(world_size)]
            for number, whole in _gather(gradients, lists, rank):
                [norm] = torch._foreach_norm([whole], norm_type)
                norms[number] = norm
        # Each norm is 0 on all ranks but one, so the sum adds zeros to it: no rounding, in any
        # order.
        if world_size > 1:
            dist.all_reduce(norms)
        real = torch.empty((), dtype=dtype).abs().dtype
        found.update({number: norms[number].to(real) for number in numbers})
    return [found[number] for number in range(len(gradients))]


def _portions(rounds: list[list[int]], gradients: Sequence[Tensor]) -> Iterator[list[list[int]]]:
    """Returns consecutive rounds that can be gathered together."""
    portion: list[list[int]] = []
    num_bytes = 0
    for some in rounds:
        largest = gradients[some[0]]
        size = largest.numel() * largest.element_size()
        if portion and num_bytes + size > _MOST_BYTES:
            yield portion
            portion, num_bytes = [], 0
        portion.append(some)
        num_bytes += size
    yield portion


def _gather(gradients: Sequence[Tensor], lists: list[list[int]], rank: int) -> list[tuple[int, Tensor]]:
    """Gathers gradients, the ones in ``lists[r]`` on rank r: their numbers and this rank's whole
    tensors."""
    world_size = len(lists)
    if world_size == 1:
        return [(number, to_local(gradients[number])) for number in lists[0]]
    outgoing = [_numbers(to_local(gradients[number])) for numbers in lists for number in numbers]
    sent = [sum(_length(gradients[number], rank, world_size) for number in numbers) for numbers in lists]
    lengths = [[_length(gradients[number], peer, world_size) for number in lists[rank]] for peer in range(world_size)]
    flat = torch.cat(outgoing)
    received = flat.new_empty(sum(map(sum, lengths)))
    dist.all_to_all_single(received, flat, list(map(sum, lengths)), sent)
    whole: list[tuple[int, Tensor]] = []
    if not lists[rank]:
        return whole
    pieces = torch.split(received, list(itertools.chain.from_iterable(lengths)))
    for place, number in enumerate(lists[rank]):
        numbers = torch.cat(pieces[place :: len(lists[rank])])  # rows of rank 0, 1, ...
        gradient = gradients[number]
        if gradient.is_complex():
            numbers = torch.view_as_complex(numbers.view(-1, 2))
        whole.append((number, numbers.view(gradient.shape)))
    return whole


def _numbers(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _length(gradient: Tensor, rank: int, world_size: int) -> int:
    """Returns how many numbers of a gradient a rank owns."""
    num_rows = len(rows_of(len(gradient), rank, world_size))
    return num_rows * math.prod(gradient.shape[1:]) * (2 if gradient.is_complex() else 1)
