"""Tensors of no prepared model that get gradients inside ``batch.shards``.

Nothing combines these gradients over the processes. Inside that may be right: the gradient of an
input, or of a copy of the model. Outside, they are of this process's shards only, so that using one
raises an error.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from lockstep._base.errors import UsageError
from lockstep._base.versions import version
from lockstep._plan.powers_of_two import PowersOfTwo
from lockstep._prepare.state_adapters import parameters_of


class UnpreparedParameters:
    """Finds them in the graphs of losses, now and then, and in optimizers; from then on it guards
    their gradients.

    Args:
        ids: of the parameters of prepared models.
    """

    def __init__(self, ids: Collection[int]) -> None:
        self._ids = ids
        self.known: dict[int, ref[Tensor]] = {}
        """Those found so far: nearly always none, and then there is nothing to do when a phase
        begins or ends."""
        self.looks = PowersOfTwo()
        """The steps whose graphs are looked at."""
        self._before: dict[int, tuple[Tensor, int]] = {}
        """Their gradients when the phase began, with the number of in-place changes: made outside,
        these are right."""

    def note(self, optimizer: Optimizer) -> None:
        """An optimizer steps outside of ``batch.shards``, all of whose parameters belong to no
        prepared model."""
        self.known.update({id(parameter): ref(parameter) for parameter in parameters_of(optimizer)})

    def begin_phase(self) -> None:
        """Remove the placeholders, to which autograd could add nothing."""
        self._before = {}
        for key, parameter in self._alive():
            if isinstance(parameter.grad, LocalGrad):
                parameter.grad = None
            elif parameter.grad is not None:
                self._before[key] = parameter.grad, version(parameter.grad)

    def look(self, loss: Tensor, step: int) -> None:
        """Look at the graph of a loss, if that is due: it takes as long as a few percent of a
        shard."""
        if self.looks.take(step):
            self.known.update({id(leaf): ref(leaf) for leaf in leaves(loss) if id(leaf) not in self._ids})

    def end_phase(self) -> None:
        """Put placeholders for the gradients, which raise an error when used."""
        for key, parameter in self._alive():
            gradient = parameter.grad
            if gradient is None:
                continue
            before, changes = self._before.get(key, (None, 0))
            if gradient is not before or version(gradient) != changes:
                parameter.grad = LocalGrad.like(parameter)

    def _alive(self) -> list[tuple[int, Tensor]]:
        found = {key: tensor for key, reference in self.known.items() if (tensor := reference()) is not None}
        # or prepared since
        self.known = {key: ref(tensor) for key, tensor in found.items() if key not in self._ids}
        return [(key, found[key]) for key in self.known]


def leaves(loss: Tensor) -> list[Tensor]:
    """The tensors to which a backward pass from a loss would give gradients."""
    found, waiting, seen = [], [loss.grad_fn], set[Node | None]({None})
    while waiting:
        node = waiting.pop()
        if node in seen or node is None:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.append(leaf)
        waiting += [following for following, _ in node.next_functions]
    return found


def forget_gradients(model: nn.Module) -> None:
    """Remove the placeholders from a model that is about to be prepared."""
    for parameter in model.parameters():
        if is_local_grad(parameter.grad):
            parameter.grad = None


def is_local_grad(gradient: Tensor | None) -> bool:
    """Whether it is a placeholder for a gradient that was not combined over the processes."""
    return isinstance(gradient, LocalGrad)


def refuse(shape: torch.Size, where: str = "") -> UsageError:
    """The error for a gradient of a parameter of no prepared model. ``where``: the call that uses
    it, for the message."""
    return UsageError(
        f"{where}a tensor of shape {tuple(shape)} got a gradient inside batch.shards and belongs to no prepared model: the "
        "gradient is of this process's shards only, so every process would train a different copy, of which no checkpoint "
        "has anything. Prepare the model that it is part of with the others: `model, head, optimizer, loader = "
        "team.prepare(model, head, optimizer, loader)`; make a lone tensor an nn.Parameter of such a model; and build models "
        "whole before that, since a layer that is added or replaced later does not take part. (If it is not to be trained by "
        "this loss, detach() it there.)",
        code="gradient-of-unprepared",
    )


class LocalGrad(Tensor):
    """A placeholder in ``.grad`` of such a parameter, outside of ``batch.shards``. Operations on it
    raise UsageError."""

    @staticmethod
    def like(parameter: Tensor) -> LocalGrad:
        """A placeholder of a tensor's shape, which takes no memory."""
        return parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(LocalGrad)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):  # its shape, say
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if name == "__deepcopy__":  # a copy of the parameter has no gradient
            return None
        first = next((value for value in _flat(args) if isinstance(value, LocalGrad)), None)
        raise refuse(torch.Size() if first is None else first.shape)


def _flat(args: tuple[Any, ...]) -> list[Any]:
    return [part for value in args for part in (value if isinstance(value, (list, tuple)) else (value,))]
