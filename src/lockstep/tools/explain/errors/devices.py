"""Tensors on a wrong device, without a gradient or used twice: names the layer and the tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lockstep.tools.explain.errors.row import row
from lockstep.tools.explain.errors.scene import Scene, learning, listed, shape


def _wrong_device(match: re.Match[str], scene: Scene) -> str:
    """Compares the devices of the failing layer with those of its inputs."""
    if scene.failing is None:
        return ""
    module, frame = scene.failing
    parameters = _by_device([*module.named_parameters(), *module.named_buffers()])
    kept = {f"self.{name}": value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")}
    inputs = _by_device(scene.tensors({**kept, **{name: value for name, value in frame.f_locals.items() if name != "self"}}))
    if not parameters or len({*parameters, *inputs}) < 2:
        return ""
    layer = scene.where[:1].upper() + scene.where[1:]
    if len(parameters) > 1:
        return (
            f"{layer} is on several devices: {_placed(parameters)}. It cannot compute with both: call model.to(device) "
            "once the last layer is made."
        )
    (home,) = parameters
    strays = {device: names for device, names in inputs.items() if device != home}
    remedy = (
        "A model on meta has no data yet: model.to_empty(device=...), then initialize or load it"
        if home == "meta"
        else f"Move what the model is given there, .to({home!r}), or the model to its data"
    )
    return (
        f"{layer} has its parameters ({listed(parameters[home], most=3)}) on {home}, and computes with {_placed(strays)}. "
        f"PyTorch moves neither by itself. {remedy}; a tensor that it makes itself needs device=x.device, one that it keeps "
        "must be a buffer (register_buffer)."
    )


def _by_device(tensors: Iterable[tuple[str, Any]]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, tensor in tensors:
        if tensor.dim() or tensor.device.type != "cpu":  # single numbers are allowed
            names.setdefault(str(tensor.device), []).append(f"{name} {shape(tensor)}")
    return names


def _placed(by_device: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{listed(names, most=4)} on {device}" for device, names in by_device.items())


def _no_gradient(match: re.Match[str], scene: Scene) -> str:
    loss = scene.find("backward", "self")
    loss = loss if scene.is_tensor(loss) else None
    name = ""
    if scene.user_frame is not None and loss is not None:
        name = next((name for name, value in list(scene.user_frame.f_locals.items()) if value is loss), "")
    model = scene.models[0] if scene.models else None
    about = (name or "a loss") + (f" {shape(loss)}" if loss is not None and loss.dim() else "")
    begin = f"backward() was called on {about}, which depends on no parameter"
    if model is not None and not learning(model):
        return (
            f"{begin}: all parameters of {type(model).__name__} have requires_grad=False. Nothing can be trained. "
            "Unfreeze what is to learn: parameter.requires_grad_(True), before the optimizer is made."
        )
    count = f" ({len(learning(model))} of {type(model).__name__} could get gradients)" if model is not None else ""
    return (
        f"{begin} that learns{count}. Nothing can be trained. The loss was computed under torch.no_grad() or inference_mode(), "
        "or made from values that were taken out of the graph: .detach(), .item(), .data, NumPy, argmax, or torch.tensor(loss)."
    )


ROWS = (
    row(
        "wrong devices",
        r"Expected all tensors to be on the same device|is not on the expected device|"
        r"Input type \([^)]*\) and weight type \([^)]*\) should be the same|"
        r"Tensors of the same index must be on the same device",
        _wrong_device,
        ("RuntimeError",),
    ),
    row(
        "a graph used twice",
        r"backward through the graph a second time",
        "The loss depends on something that an earlier backward pass has used up: mostly a hidden state, or a running value, "
        "that was kept from the step before. Cut it off there, with state = state.detach(); in a lockstep script, keep it with "
        "team.per_shard, since each shard has its own. If two losses share a forward pass, add them and call backward once.",
    ),
    row("a loss without gradient", r"element 0 of tensors does not require grad and does not have a grad_fn", _no_gradient),
)
