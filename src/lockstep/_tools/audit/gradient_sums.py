"""Sums of the bits of one shard's losses and gradients, taken from autograd before these are
weighted, added or moved."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping

from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lockstep._base.digest import bit_sum, read_sums
from lockstep._listener import Listener
from lockstep._plan.shards import MicroBatch

LOSS = "the loss"
Sums = dict[str, int]
"""The sums by backward call and parameter, in the order in which the backward pass computes
them."""


class GradientSums(Listener):
    """A listener with hooks into the backward passes of one shard's micro-batches. Nothing is
    copied from a GPU before ``read``.

    Args:
        parameters: the parameters, with their names.
    """

    def __init__(self, parameters: Mapping[Parameter, str]) -> None:
        self._parameters = parameters
        self._handles: list[RemovableHandle] = []
        self._bit_sums: dict[tuple[int, int, str], list[Tensor]] = {}
        self._part = self._call = 0

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        self._part, self._call = micro.part, -1
        for parameter, name in self._parameters.items():
            if parameter.requires_grad:
                note = functools.partial(self._note, name)
                self._handles.append(parameter.register_hook(note))  # type: ignore[no-untyped-call]

    @override
    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        self._call += 1
        self._note(LOSS, loss)

    def _note(self, name: str, tensor: Tensor) -> None:
        # Summed now: whatever receives the gradient next may change it in place.
        self._bit_sums.setdefault((self._part, self._call, name), []).append(bit_sum(tensor))

    @override
    def end_shard(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @override
    def abandon_step(self) -> None:
        self.end_shard()

    def read(self) -> Sums:
        """The sums so far, by name."""
        # One key may have several sums: reentrant checkpoints deliver a gradient in parts.
        keys = [key for key, tensors in self._bit_sums.items() for _ in tensors]
        numbers = read_sums([tensor for tensors in self._bit_sums.values() for tensor in tensors])
        sums: Sums = {}
        for key, number in zip(keys, numbers, strict=True):
            name = _name(*key)
            sums[name] = sums.get(name, 0) + number
        return sums


def digest_of(sums: Sums) -> int:
    """Returns a digest of the sums in any order, because models on several devices have one
    autograd thread per device: 48 bits, which fit into a float64."""
    return int.from_bytes(hashlib.blake2b(repr(sorted(sums.items())).encode(), digest_size=6).digest(), "little")


def _name(part: int, call: int, name: str) -> str:
    where = [f"part {part + 1}"] if part else []
    where += [f"backward call {call + 1}"] if call > 0 else []
    return name + (f" ({', '.join(where)})" if where else "")
