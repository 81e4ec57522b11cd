"""The units of a model under ``fully_shard``, and when the backward pass is through with each.

A unit is a module whose own parameters are gathered and freed together. Every rank must run the
same units in the same order, forward and backward: each pass is a collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import Parameter

from lockstep._base.trees import tensors_in
from lockstep._sync.gradients import has_gradient
from lockstep._sync.slices import Slices, make_slices


class Unit:
    """A module whose own parameters are gathered and freed together.

    Args:
        module: the module, after ``fully_shard``.
        number: its number among the units of all models; it stands for the unit where ranks compare
            what they have run.
        world_size: number of ranks.
        begun: called with the unit when a forward pass begins; returns whether it counts.
        entered: called with the unit when a backward pass has the gradient of an output of one of
            these. PyTorch gathers the parameters at the first of them.
        passed: called with the unit when a backward pass is through with one of these, as far as
            that is known.
    """

    def __init__(
        self,
        module: FSDPModule,
        number: int,
        world_size: int,
        begun: Callable[[Unit], bool],
        entered: Callable[[Unit], None],
        passed: Callable[[Unit], None],
    ) -> None:
        assert isinstance(module, nn.Module)
        self.module: FSDPModule = module
        self.number = number
        self.gathered: dict[Parameter, Parameter] = {}
        """The whole parameters, on which autograd works and which are empty between passes, with
        their sharded ones."""
        before = dict(module.named_parameters())
        module.unshard()
        for name, whole in module.named_parameters():
            if whole is not before[name]:
                self.gathered[whole] = before[name]
        module.reshard()
        self.slices: list[Slices] = make_slices(filter(has_gradient, self.gathered.values()), world_size)
        self.num_awaited = 0
        """The number of forward passes of the micro-batch that a backward pass has yet to
        announce."""
        self.is_unannounced = False
        """Whether the micro-batch had forward passes that no backward pass announces, because their
        inputs have no gradients."""
        self.has_run = False
        """Whether the micro-batch had forward passes."""
        self._begun, self._entered, self._passed = begun, entered, passed
        self._counts = False
        """Whether the running forward pass counts."""
        # The first of all hooks: what another one computes from the parameters (weight_norm) comes
        # after it, and so before it in the backward pass.
        module.register_forward_pre_hook(self._before_forward, with_kwargs=True, prepend=True)
        module.register_forward_hook(self._after_forward)

    def begin_shard(self) -> None:
        """Begins a micro-batch."""
        self.num_awaited, self.is_unannounced, self.has_run, self._counts = 0, False, False, False

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_forward(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._counts = torch.is_grad_enabled() and self._begun(self)
        if not self._counts:
            return None
        self.has_run = True
        places = [place for place, value in enumerate(args) if _learns(value)]
        names = [name for name, value in kwargs.items() if _learns(value)]
        if not places and not names:
            self.is_unannounced = True
            return None
        self.num_awaited += 1
        inputs = [*(args[place] for place in places), *(kwargs[name] for name in names)]
        outputs: tuple[Tensor, ...] = _Announce.apply(self, *inputs)  # type: ignore[no-untyped-call]
        replaced = dict(zip([*places, *names], outputs, strict=True))
        return (
            tuple(replaced.get(place, value) for place, value in enumerate(args)),
            {name: replaced.get(name, value) for name, value in kwargs.items()},
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after_forward(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self._counts:
            self._counts = False
            for tensor in filter(_learns, tensors_in(output)):
                tensor.register_hook(self._enter)  # type: ignore[no-untyped-call]

    def _enter(self, _gradient: Tensor) -> None:
        self._entered(self)

    def announce(self) -> None:
        """Notes that a backward pass has computed the gradients of the inputs of one forward pass.
        Then it has computed the gradients of its weights, too: autograd runs the nodes first that
        were created last."""
        self._passed(self)


class _Announce(torch.autograd.Function):
    """An identity of the inputs of a unit, whose backward pass shows that the unit's is
    complete."""

    @staticmethod
    def forward(ctx: Any, unit: Unit, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        ctx.unit.announce()
        return (None, *gradients)


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def find_units(model: nn.Module) -> Iterator[nn.Module]:
    """Returns the modules to shard as units: the elements of ModuleLists and Sequentials, innermost
    first.

    A module that shares a parameter with another module is left to the unit of the whole
    model."""
    occurrences = Counter(parameter for module in model.modules() for parameter in module._parameters.values())
    for module in reversed(list(model.modules())):
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        for block in module:
            counts = Counter(parameter for module in block.modules() for parameter in module._parameters.values())
            counts.pop(None, None)
            if counts and block is not model and all(occurrences[parameter] == count for parameter, count in counts.items()):
                yield block


SAME_BLOCKS = (
    "With strategy='fsdp' all shards must run the same blocks in the same order, forward and backward. If layers are skipped "
    "at random or chosen by the data, run all and choose among the results by torch.where(), or use another strategy."
)
"""The remedy in messages about ranks that run different units."""
