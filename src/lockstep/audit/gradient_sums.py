"""Sums of bits of one shard's losses and gradients, taken from autograd before anybody weighs, adds or moves them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from lockstep.digest import bit_sum, read_sums

LOSS = "the loss"
Sums = dict[str, int]
"""By backward call and parameter, in the order in which the backward pass computes them."""


class GradientSums:
    """Listens to the backward passes of a shard's micro-steps, between ``begin`` and ``end``. Nothing is read from a GPU until
    ``read``."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._found: dict[tuple[int, int, str], list[Tensor]] = {}
        self._part = self._call = 0

    def begin(self, parameters: Mapping[Parameter, str], part: int) -> None:
        """A micro-step begins."""
        self._part, self._call = part, -1
        for parameter, name in parameters.items():
            if parameter.requires_grad:
                note = functools.partial(self._note, name)
                self._handles.append(parameter.register_hook(note))  # type: ignore[no-untyped-call]

    def before_backward(self, loss: Tensor) -> None:
        """A backward pass begins."""
        self._call += 1
        self._note(LOSS, loss)

    def _note(self, name: str, tensor: Tensor) -> None:
        # A copy of the sum now: whoever gets the gradient next may change it in place.
        self._found.setdefault((self._part, self._call, name), []).append(bit_sum(tensor))

    def end(self) -> None:
        """The micro-step has ended, or is given up."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def read(self) -> Sums:
        """What was found."""
        keys = [key for key, sums in self._found.items() for _ in sums]  # reentrant checkpoints give a gradient in parts
        found: Sums = {}
        for key, number in zip(keys, read_sums([item for sums in self._found.values() for item in sums]), strict=True):
            name = _name(*key)
            found[name] = found.get(name, 0) + number
        return found


def _name(part: int, call: int, name: str) -> str:
    where = [f"part {part + 1}"] if part else []
    where += [f"backward call {call + 1}"] if call > 0 else []
    return name + (f" ({', '.join(where)})" if where else "")
