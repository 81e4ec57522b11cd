"""What a rank that had no samples in a step takes over from one that had: all that the step has changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.comm.spread import spread_like
from lockstep.data.batches import map_tensors


def state_of(thing: Any) -> Any:
    """The state of a prepared object after a step, with tensors on the CPU (they go to other processes)."""
    if isinstance(thing, nn.Module):
        # Tensors instead of a state dict: buffers that are not saved count too, and so do gradients that are kept.
        parameters = [parameter.detach() for parameter in thing.parameters()]
        buffers = {name: buffer.detach() for name, buffer in thing.named_buffers()}
        gradients = [parameter.grad for parameter in thing.parameters()]
        learns = [parameter.requires_grad for parameter in thing.parameters()]  # scripts freeze and thaw in the body
        return _to_cpu((parameters, buffers, gradients)), learns
    return _to_cpu(thing.state_dict())


@torch.no_grad()
def load_state(thing: Any, state: Any) -> None:
    """Give an object the state that its equal has on another rank."""
    if isinstance(thing, nn.Module):
        (values, buffers, gradients), learns = state
        for name, value in buffers.items():
            owner, _, last = name.rpartition(".")
            put_buffer(thing.get_submodule(owner), last, value)
        for parameter, value, gradient, yes in zip(thing.parameters(), values, gradients, learns, strict=True):
            parameter.copy_(value)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
            parameter.requires_grad_(yes)
        return
    if isinstance(thing, Optimizer):
        state = _spread(thing, state)
    thing.load_state_dict(state)
    if isinstance(thing, Optimizer):
        _restore_dtypes(thing, state)


def put_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    """Give a module's buffer a value, also where it has none yet."""
    buffer = getattr(module, name)
    if buffer is None:  # it was made in the step that this rank has not seen
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
                name: spread_like(value, parameters[index])
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


def _to_cpu(state: Any) -> Any:
    # Copies: a gradient is a view into its bucket, and would be sent with all of it.
    return map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), state)
