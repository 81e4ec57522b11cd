"""What a checkpoint holds of a prepared object, and how it gets back.

A model's weights are kept apart from the rest, under the names that the user's own model gives them, so that they can be
loaded anywhere. The rest is what a run needs besides to go on as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, amp, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep.comm.dtensors import distribute_like, to_local

Weights = dict[str, Tensor]


class Content:
    """One object's part of the run's state. This one is for objects that say themselves what their state is.

    Args:
        thing: the object.
    """

    kind = "object"

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.name = self.kind
        """That of its files and of messages."""
        self.options_at_birth = self.options()
        """Those it was made with: an optimizer's, or a schedule's."""

    def weights(self) -> Weights | None:
        """A model's weights, its own and not copies; None: it is none."""
        return None

    def state_dict(self) -> Any:
        """The rest: a tree of plain values and tensors, its own and not copies."""
        return self.thing.state_dict()

    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """Give the object what was taken of its like."""
        self.thing.load_state_dict(state)

    def describe(self) -> list[str]:
        """What must be the same of it when a run is resumed, a line each."""
        return []

    def options(self) -> dict[str, Any]:
        """The options that it has now, by name (with the number of its group behind, if there are several)."""
        return {}

    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        """Set the options of these names to those at birth; ``before`` has the ``repr`` of those in the checkpoint."""

    def compared(self) -> Iterator[tuple[str, Any]]:
        """What must be the same on all ranks, with words that name it."""
        yield "the state", self.state_dict()


class ModelContent(Content):
    """A model's: its weights, hidden tensors, gradients, and what is frozen or in evaluation mode."""

    kind = "model"

    def weights(self) -> Weights:
        """See Content."""
        state = innermost(self.thing).state_dict()
        return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}

    def state_dict(self) -> Any:
        """See Content."""
        model: nn.Module = self.thing
        known = {_memory_of(value) for value in self.weights().values()}
        state = innermost(model).state_dict()
        return {
            "extra": {name: value for name, value in state.items() if not isinstance(value, Tensor)},
            "hidden": {name: value for name, value in _own_tensors(model).items() if _memory_of(value) not in known},
            "gradients": {name: _gradient_apart(p.grad) for name, p in model.named_parameters() if p.grad is not None},
            "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
            "evaluating": [name for name, module in model.named_modules() if not module.training],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Content."""
        assert weights is not None
        model: nn.Module = self.thing
        inner = innermost(model)
        own = inner.state_dict()
        values = {name: distribute_like(value, own.get(name, value)) for name, value in weights.items()}
        for name, value in values.items():
            _make_buffer(inner, name, value)
        inner.load_state_dict({**values, **state["extra"]})
        for name, value in state["hidden"].items():
            _put_hidden(model, name, value)
        frozen, evaluating = set(state["frozen"]), set(state["evaluating"])
        for name, parameter in model.named_parameters():
            gradient = state["gradients"].get(name)
            parameter.grad = (
                None if gradient is None else distribute_like(_gradient_together(gradient), parameter).to(parameter.device)
            )
            parameter.requires_grad_(name not in frozen)
        for name, module in model.named_modules():
            module.training = name not in evaluating

    def describe(self) -> list[str]:
        """See Content. Parameters only: buffers may be made later, and of these loading finds out by itself."""
        return [
            f"{name} of shape {tuple(parameter.shape)}, {str(parameter.dtype).removeprefix('torch.')}"
            for name, parameter in innermost(self.thing).named_parameters()
        ]

    def compared(self) -> Iterator[tuple[str, Any]]:
        """See Content."""
        for name, tensor in (*self.thing.named_parameters(), *self.thing.named_buffers()):
            yield repr(name), tensor


class AverageContent(ModelContent):
    """An ``AveragedModel``'s."""

    kind = "average"


class OptimizerContent(Content):
    """An optimizer's."""

    kind = "optimizer"

    @torch.no_grad()
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Content."""
        state = _spread(self.thing, state)
        self.thing.load_state_dict(state)
        _restore_dtypes(self.thing, state)

    def describe(self) -> list[str]:
        """See Content."""
        groups = self.thing.param_groups
        return [f"group {number} of {len(group['params'])} parameters" for number, group in enumerate(groups, 1)]

    def options(self) -> dict[str, Any]:
        """See Content."""
        groups = self.thing.param_groups
        found = {}
        for number, group in enumerate(groups, 1):
            for name, value in group.items():
                if name != "params":
                    key = name if len(groups) == 1 else f"{name} of group {number}"
                    found[key] = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
        return found

    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        """See Content."""
        options, groups = self.options_at_birth, self.thing.param_groups
        for number, group in enumerate(groups, 1):
            behind = "" if len(groups) == 1 else f" of group {number}"
            changed = {
                name.removesuffix(behind): options[name] for name in names if name.endswith(behind) and name in options
            }
            if "initial_lr" in group:
                # A schedule has moved the rate on: what has changed is the rate that it began with.
                begin = "initial_lr" if "initial_lr" + behind in options else "lr"
                if begin != "lr":
                    changed.pop("lr", None)
                was = float(before.get(begin + behind, "0"))
                if begin in changed and was:
                    factor = float(changed[begin]) / was
                    changed.update(lr=float(group["lr"]) * factor, initial_lr=float(group["initial_lr"]) * factor)
            for name, value in changed.items():
                if isinstance(group.get(name), Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value

    def compared(self) -> Iterator[tuple[str, Any]]:
        """See Content."""
        groups = self.thing.param_groups
        yield "an option", [{name: value for name, value in group.items() if name != "params"} for group in groups]
        for number, slots in enumerate(self.thing.state.values()):
            yield from ((f"{name!r} ({number})", value) for name, value in slots.items() if isinstance(value, Tensor))


class ScheduleContent(Content):
    """A schedule's."""

    kind = "schedule"

    def options(self) -> dict[str, Any]:
        """See Content."""
        return {name: value for name, value in self.thing.state_dict().items() if _is_plain(value)}

    def apply_options(self, names: list[str], before: Mapping[str, str]) -> None:
        """See Content."""
        options = self.options_at_birth
        self.thing.__dict__.update({name: options[name] for name in names if name in options})


class ScalerContent(Content):
    """A loss scaler's."""

    kind = "scaler"


_CONTENTS: tuple[tuple[type, type[Content]], ...] = (
    (AveragedModel, AverageContent),
    (nn.Module, ModelContent),
    (Optimizer, OptimizerContent),
    (LRScheduler, ScheduleContent),
    (amp.GradScaler, ScalerContent),
    (object, Content),
)


def content_of(thing: Any) -> Content:
    """An object's part of the run's state."""
    return next(content for kind, content in _CONTENTS if isinstance(thing, kind))(thing)


def innermost(model: nn.Module) -> nn.Module:
    """The model whose names the user knows: neither averaged nor compiled."""
    while True:
        inner = model.module if isinstance(model, AveragedModel) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {
        **{name: parameter.detach() for name, parameter in module.named_parameters()},
        **{name: buffer.detach() for name, buffer in module.named_buffers()},
    }


def _memory_of(tensor: Tensor) -> tuple[Any, ...]:
    tensor = to_local(tensor)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _make_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    """Make room for a buffer that the new model has not, or in another shape: it was made, or grew, during training."""
    owner_name, _, last = name.rpartition(".")
    try:
        owner = module.get_submodule(owner_name)
    except AttributeError:
        return  # loading will say what does not fit
    if last not in owner._buffers:
        return
    now = owner._buffers[last]
    if now is None:
        put_buffer(owner, last, value)
    elif now.shape != value.shape or now.dtype != value.dtype or _is_expanded(now):
        owner._buffers[last] = value.to(now.device, copy=True)


def _put_hidden(module: nn.Module, name: str, value: Tensor) -> None:
    """A parameter or buffer that the model's state dict leaves out."""
    owner_name, _, last = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    now = {**owner._buffers, **owner._parameters}.get(last)
    value = value if now is None else distribute_like(value, now)
    if now is not None and now.shape == value.shape and now.dtype == value.dtype and not _is_expanded(now):
        now.copy_(value)
        return
    # A buffer that was made in training, or made anew: a cache that grew, say.
    device = next((tensor.device for tensor in (now, *module.parameters()) if tensor is not None), torch.device("cpu"))
    persistent = last in owner._buffers and last not in owner._non_persistent_buffers_set
    owner.register_buffer(last, value.to(device), persistent)


def _is_expanded(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _gradient_apart(gradient: Tensor) -> Any:
    if gradient.layout is not torch.sparse_coo:
        return gradient
    parts = {"indices": gradient._indices(), "values": gradient._values()}
    return {**parts, "shape": list(gradient.shape), "coalesced": gradient.is_coalesced()}


def _gradient_together(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.sparse_coo_tensor(
        value["indices"], value["values"], value["shape"], is_coalesced=value["coalesced"], check_invariants=True
    )


def put_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    """Give a module's buffer a value, also where it has none yet."""
    buffer = getattr(module, name)
    if buffer is None:  # it was made after the first step
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        setattr(module, name, value.to(device))
    else:
        buffer.copy_(value)


def _spread(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The state of parameters of which every rank has a part is spread as they are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        **state,
        "state": {
            index: {
                name: distribute_like(value, parameters[index])
                if isinstance(value, Tensor) and value.shape == parameters[index].shape
                else value
                for name, value in slots.items()
            }
            for index, slots in state["state"].items()
        },
    }


def _restore_dtypes(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Loading casts state to its parameter's dtype; float32 masters of 16-bit parameters must stay what they are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, slots in state["state"].items():
        parameter = parameters[index]
        for name, value in slots.items():
            if isinstance(value, Tensor) and optimizer.state[parameter][name].dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(parameter.device)
