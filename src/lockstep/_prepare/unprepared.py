"""Tensors that belong to no prepared model and receive gradients inside ``batch.shards``.

lockstep does not combine these gradients over the processes. Inside the shard loop that may be
right, for example for the gradient of an input. Outside, such a gradient depends on the shards of
this process, so using it raises an error::

    look at a loss's graph (steps 1, 2, 4, 8, ...), or an optimizer's step   -> ``known``
    end_phase      a new gradient of a known tensor becomes a LocalGrad
    outside        any operation on a LocalGrad raises UsageError
    begin_phase    LocalGrads are removed: autograd could not add to them

A look follows all nodes of the graph, which costs a few percent of a shard: hence its rare steps.
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
    """The search for such tensors in graphs of losses and in optimizers, and the guard of their
    gradients.

    Args:
        ids: the ids of the parameters of prepared models.
    """

    def __init__(self, ids: Collection[int]) -> None:
        self._ids = ids
        self.known: dict[int, ref[Tensor]] = {}
        """The tensors found so far. Usually there are none, and then the beginning and end of a
        phase have nothing to do."""
        self.looks = PowersOfTwo()
        """The steps whose graphs are searched."""
        self._before: dict[int, tuple[Tensor, int]] = {}
        """The gradients at the beginning of the phase, with the number of in-place changes. They
        were computed outside, the same on every rank."""

    def note(self, optimizer: Optimizer) -> None:
        """Adds the parameters of an optimizer that steps outside of ``batch.shards``, none of which
        belongs to a prepared model."""
        self.known.update({id(parameter): ref(parameter) for parameter in parameters_of(optimizer)})

    def begin_phase(self) -> None:
        """Removes the placeholders, to which autograd cannot add gradients."""
        self._before = {}
        for key, parameter in self._alive():
            if isinstance(parameter.grad, LocalGrad):
                parameter.grad = None
            elif parameter.grad is not None:
                self._before[key] = parameter.grad, version(parameter.grad)

    def look(self, loss: Tensor, step: int) -> None:
        """Searches the graph of a loss, if that is due. It takes a few percent of a shard's
        time."""
        if self.looks.take(step):
            self.known.update({id(leaf): ref(leaf) for leaf in leaves(loss) if id(leaf) not in self._ids})

    def end_phase(self) -> None:
        """Replaces new gradients by placeholders, which raise an error when used."""
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
    """Returns the tensors to which a backward pass from a loss would give gradients."""
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
    """Removes the placeholders from a model that is about to be prepared."""
    for parameter in model.parameters():
        if is_local_grad(parameter.grad):
            parameter.grad = None


def is_local_grad(gradient: Tensor | None) -> bool:
    """Returns whether a gradient is a placeholder for one that was not combined over the
    processes."""
    return isinstance(gradient, LocalGrad)


def refuse(shape: torch.Size, where: str = "") -> UsageError:
    """Returns the error for a gradient of a parameter of no prepared model. ``where``: the call
    that uses it, for the message."""
    return UsageError(
        f"{where}a tensor of shape {tuple(shape)} received a gradient inside batch.shards but belongs to no prepared model, so "
        "each process would train its own copy. Prepare its model, complete with all layers: `model, head, optimizer, loader "
        "= team.prepare(model, head, optimizer, loader)`, or detach() it if this loss does not train it.",
        code="gradient-of-unprepared",
    )


class LocalGrad(Tensor):
    """A placeholder in ``.grad`` of an unprepared parameter, outside of ``batch.shards``.
    Operations on it raise UsageError."""

    @staticmethod
    def like(parameter: Tensor) -> LocalGrad:
        """Returns a placeholder of a tensor's shape, which takes no memory."""
        return parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(LocalGrad)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):  # for example its shape
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if name == "__deepcopy__":  # a copy of the parameter has no gradient
            return None
        first = next((value for value in _flat(args) if isinstance(value, LocalGrad)), None)
        raise refuse(torch.Size() if first is None else first.shape)


def _flat(args: tuple[Any, ...]) -> list[Any]:
    return [part for value in args for part in (value if isinstance(value, (list, tuple)) else (value,))]
