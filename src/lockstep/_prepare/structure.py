"""The structure of a model: the names of its layers, parameters and buffers, and its tied
parameters.

A checkpoint restores values into a model that the script builds again. So a change of structure
after prepare() would be missing in the resumed run, or prevent it. The first checkpoint after such
a change warns.
"""

from __future__ import annotations

import dis
import functools
from types import FunctionType
from typing import Any

from torch import Tensor, nn

_NAMED = ("named_parameters", "named_buffers")


def named_tensors(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, Tensor]]:
    """Returns ``named_parameters()`` and ``named_buffers()`` of a model, in their order.

    In one pass over its modules. PyTorch makes one for each, which take most of the time of a look
    at a deep model's state. A model that overrides either is asked itself."""
    if any(getattr(getattr(model, name), "__func__", None) is not getattr(nn.Module, name) for name in _NAMED):
        return dict(model.named_parameters()), dict(model.named_buffers())
    parameters, buffers = dict[str, nn.Parameter](), dict[str, Tensor]()
    seen, seen_buffers = set[int](), set[int]()
    for prefix, module in model.named_modules():
        before = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                parameters[before + name] = parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen_buffers:
                seen_buffers.add(id(buffer))
                buffers[before + name] = buffer
    return parameters, buffers


class Structure:
    """The structure of a model at the time when this object was made."""

    def __init__(self, model: nn.Module) -> None:
        first: dict[int, str] = {}
        self._parameters: dict[str, tuple[str, str]] = {}
        """The form of each parameter by name, and the first name of the same parameter."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            form = f"shape {tuple(parameter.shape)}, {str(parameter.dtype).removeprefix('torch.')}"
            self._parameters[name] = (form, first.setdefault(id(parameter), name))
        # Without buffers that are not persistent: the script or the model makes those again.
        self._buffers = {name for name, _ in model.named_buffers() if _is_saved(model, name)}
        layers = dict(model.named_modules())
        self._layers = _kinds_of(layers)
        self._made = {name for name in layers if _is_made_by_forward(layers, name)}
        """The layers that a forward pass makes, perhaps in the first evaluation. A new model makes
        them again."""
        self._has_lazy_layers = False

    def add_lazy_layers(self, model: nn.Module) -> None:
        """Takes over the model's layers as they are now: the first forward pass has made some, and
        that of a new model makes them again."""
        self._layers, self._has_lazy_layers = _kinds_of(dict(model.named_modules())), True

    def _is_made_again(self, name: str) -> bool:
        return any(name == made or name.startswith(f"{made}.") for made in self._made)

    def changes_to(self, now: Structure) -> list[str]:
        """Returns descriptions of the changes that a model which is built again would not have."""
        then, found = self._parameters, []
        for name, (form, same) in now._parameters.items():
            if name not in then:
                found.append(f"`{name}` is new")
            elif same != then[name][1]:
                found.append(f"`{name}` is tied to `{same}`" if same != name else f"`{name}` is no longer `{then[name][1]}`")
            elif form != then[name][0]:
                found.append(f"`{name}` has {form}, and had {then[name][0]}")
        found += [f"`{name}` is missing" for name in then if name not in now._parameters]
        found += [f"the buffer `{name}` is missing" for name in sorted(self._buffers - now._buffers)]
        # A changed parameter already names its layer.
        if found or not self._has_lazy_layers:
            return found
        for name, kind in now._layers.items():
            before = self._layers.get(name, kind)
            if name not in self._layers and not now._is_made_again(name):
                found.append(f"the layer `{name}` ({kind}) is new")
            elif before != kind:
                found.append(f"the layer `{name}` is a {kind}, and was a {before}")
        return found + [f"the layer `{name}` is missing" for name in self._layers if name not in now._layers]


def _kinds_of(layers: dict[str, nn.Module]) -> dict[str, str]:
    return {name: type(layer).__name__ for name, layer in layers.items()}


def _is_saved(model: nn.Module, name: str) -> bool:
    owner, _, own_name = name.rpartition(".")
    return own_name not in model.get_submodule(owner)._non_persistent_buffers_set


def _is_made_by_forward(layers: dict[str, nn.Module], name: str) -> bool:
    """Returns whether a layer without parameters and buffers is assigned by the forward pass of its
    parent."""
    holder, _, own_name = name.rpartition(".")
    kind: Any = type(layers[holder])
    if not name or own_name not in _assigned_by_forward(kind):
        return False
    return not any(True for _ in layers[name].parameters()) and not any(True for _ in layers[name].buffers())


@functools.lru_cache(maxsize=1024)
def _assigned_by_forward(kind: Any) -> frozenset[str]:
    """Returns the attributes that ``forward``, and methods that it calls, assign."""
    # From the bytecode: running the method is not possible without an input.
    waiting, seen, assigned = {"forward"}, set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        method = getattr(kind, name, None)
        if isinstance(method, FunctionType) and (name == "forward" or not hasattr(nn.Module, name)):
            assigned.update(part.argval for part in dis.get_instructions(method) if part.opname == "STORE_ATTR")
            waiting |= {*method.__code__.co_names} - seen
    return frozenset(assigned)
