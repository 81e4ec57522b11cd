"""Tensors on a wrong device, of a wrong shape, without a gradient or used twice: names the layer and the tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import FrameType
from typing import Any

from lockstep.tools.explain.errors.row import row
from lockstep.tools.explain.errors.scene import Scene, learning, listed, shape

_DEVICE = re.compile(r"\b((?:cuda|xpu|mps):\d+|cpu|meta)\b")


def _wrong_device(match: re.Match[str], scene: Scene) -> str:
    """Compares the devices of the failing layer and its inputs, or else those of the variables in the script's frame."""
    if words := _of_optimizer(scene):
        return words
    frame = scene.failing[1] if scene.failing is not None else scene.user_frame
    if frame is None:
        return ""
    involved = list(scene.tensors({name: value for name, value in frame.f_locals.items() if name != "self"}))
    parameters: dict[str, list[str]] = {}
    if scene.failing is not None:
        module = scene.failing[0]
        kept = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")}
        involved += [(f"self.{name}", tensor) for name, tensor in scene.tensors(kept)]
        direct = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        parameters = _by_device(direct or [*module.named_parameters(), *module.named_buffers()])
    inputs = _by_device(involved)
    if len(parameters) > 1:
        rare = min(parameters, key=lambda device: len(parameters[device]))
        return (
            f"{_capital(scene.where)} is on several devices: {_placed(parameters)}. It cannot compute with both. "
            f"Call model.to(device) once the last layer is made; {listed(parameters[rare])} may have been replaced after it."
        )
    if parameters:
        (home,) = parameters
        elsewhere = set(_DEVICE.findall(scene.text)) - {home, *inputs}
        inputs.update({device: ["a tensor that is in no variable"] for device in elsewhere if len({home, *inputs}) == 1})
    if len({*parameters, *inputs}) < 2:
        return ""
    if parameters:
        has = f"{_capital(scene.where)} has its parameters ({listed(parameters[home], most=3)}) on {home}"
        strays = {device: names for device, names in inputs.items() if device != home}
        remedy = (
            "A model on meta has no data yet: model.to_empty(device=...), then initialize or load it"
            if home == "meta"
            else f"Move what the model is given there, .to({home!r}), or the model to its data"
        )
        remedy += (
            "; a tensor that it makes itself needs device=x.device, one that it keeps must be a buffer (register_buffer)"
        )
        return f"{has}, and computes with {_placed(strays)}. PyTorch moves neither by itself. {remedy}."
    where = f"In {scene.where}" if scene.where else f"In {frame.f_code.co_name}, line {_line(scene, frame)}"
    return (
        f"{where}, tensors of different devices meet: {_placed(inputs)}. PyTorch moves none by itself: .to(device) the one "
        "that is in the wrong place, or make it with device=."
    )


def _line(scene: Scene, frame: FrameType) -> int:
    trace = scene.error.__traceback__
    line = frame.f_lineno
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame is frame else line
        trace = trace.tb_next
    return line


def _by_device(tensors: Any) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, tensor in tensors:
        if not tensor.dim() and tensor.device.type == "cpu":
            continue  # single numbers are allowed
        names.setdefault(str(tensor.device), []).append(f"{name} {shape(tensor)}")
    return names


def _placed(by_device: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{listed(names, most=4)} on {device}" for device, names in by_device.items())


def _of_optimizer(scene: Scene) -> str:
    """An optimizer's state on another device than the parameters: mostly loaded before the model was moved."""
    optimizer = scene.find("step", "self")
    if not any(optimizer is known for known in scene.optimizers):
        return ""
    pairs = {
        (str(parameter.device), str(value.device))
        for parameter, state in optimizer.state.items()
        for name, value in scene.tensors(state)
        if name != "step" and value.device != parameter.device
    }
    if not pairs:
        return ""
    (parameters, state), *_ = sorted(pairs)
    return (
        f"The state of {type(optimizer).__name__} is on {state}, and the parameters are on {parameters}. A step needs both "
        "in one place. Move the model before the optimizer is made, and load the optimizer's state after that: "
        "load_state_dict() puts it where the parameters are at that time."
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _wrong_shape(match: re.Match[str], scene: Scene) -> str:
    """Names the layer; without one the error explains itself."""
    if scene.failing is None:
        return ""
    module, frame = scene.failing
    given = dict(scene.tensors(frame.f_locals)).get("input")
    expected = getattr(module, "in_features", None)
    if given is None or not isinstance(expected, int):
        return ""
    last = given.shape[-1] if given.dim() else 0
    flat = ""
    if given.dim() > 2 and last != expected and given[0].numel() == expected:
        flat = f" All of a sample's {expected} values lie in several dimensions: flatten them first, x.flatten(1)."
    return (
        f"{_capital(scene.where)} takes {expected} features in the last dimension, and was given {last}: its input is "
        f"{shape(given)}.{flat} Make its in_features {last}, or look at what the layer before hands on."
    )


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
    row("wrong shapes", r"mat1 and mat2 shapes cannot be multiplied", _wrong_shape),
    row(
        "a graph used twice",
        r"backward through the graph a second time",
        "The loss depends on something that an earlier backward pass has used up: mostly a hidden state, or a running value, "
        "that was kept from the step before. Cut it off there, with state = state.detach(); in a lockstep script, keep it with "
        "team.per_shard, since each shard has its own. If two losses share a forward pass, add them and call backward once.",
    ),
    row("a loss without gradient", r"element 0 of tensors does not require grad and does not have a grad_fn", _no_gradient),
)
