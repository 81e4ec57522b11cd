"""What a rank that had no samples in a step takes over from one that had: all that the step has changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.data.batches import map_tensors


def state_of(thing: Any) -> Any:
    """The state of a prepared object after a step, with tensors on the CPU (they go to other processes)."""
    if isinstance(thing, nn.Module):
        # Tensors instead of a state dict: buffers that are not saved count too, and so do gradients that are kept.
        tensors = [*thing.parameters(), *thing.buffers()]
        gradients = [parameter.grad for parameter in thing.parameters()]
        learns = [parameter.requires_grad for parameter in thing.parameters()]  # scripts freeze and thaw in the body
        return _to_cpu([tensor.detach() for tensor in tensors]), _to_cpu(gradients), learns
    return _to_cpu(thing.state_dict())


@torch.no_grad()
def load_state(thing: Any, state: Any) -> None:
    """Give an object the state that its equal has on another rank."""
    if isinstance(thing, nn.Module):
        values, gradients, learns = state
        for tensor, value in zip([*thing.parameters(), *thing.buffers()], values, strict=True):
            tensor.copy_(value)
        for parameter, gradient, yes in zip(thing.parameters(), gradients, learns, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
            parameter.requires_grad_(yes)
        return
    thing.load_state_dict(state)
    if isinstance(thing, Optimizer):
        _restore_dtypes(thing, state)


def _restore_dtypes(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Loading casts state to its parameter's dtype; float32 masters of 16-bit parameters must stay what they are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, slots in state["state"].items():
        parameter = parameters[index]
        for name, value in slots.items():
            if isinstance(value, Tensor) and optimizer.state[parameter][name].dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(parameter.device)


def _to_cpu(state: Any) -> Any:
    return map_tensors(lambda tensor: tensor.cpu(), state)
