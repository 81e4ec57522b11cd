"""What a model is made of: the names of its layers, parameters and buffers, and which parameters are one and the same."""

from __future__ import annotations

from torch import nn


class Structure:
    """That of a model, as it is when this is made."""

    def __init__(self, model: nn.Module) -> None:
        first: dict[int, str] = {}
        self._parameters: dict[str, tuple[str, str]] = {}
        """The form of each, and the first name of the same parameter."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            form = f"shape {tuple(parameter.shape)}, {str(parameter.dtype).removeprefix('torch.')}"
            self._parameters[name] = (form, first.setdefault(id(parameter), name))
        # (A buffer that is not saved, or is made later, is made again.)
        self._buffers = {name for name, _ in model.named_buffers() if _is_saved(model, name)}
        self._layers = {name: type(layer).__name__ for name, layer in model.named_modules()}
        self._is_settled = False

    def settle(self, now: Structure) -> None:
        """Take the layers without parameters from another: those that a first forward pass has made it makes again."""
        self._layers, self._is_settled = now._layers, True

    def changes_to(self, now: Structure) -> list[str]:
        """What has changed, in words: only what a model that is made again would not have."""
        then, found = self._parameters, []
        for name, (form, same) in now._parameters.items():
            if name not in then:
                found.append(f"`{name}` is new")
            elif same != then[name][1]:
                found.append(f"`{name}` is tied to `{same}`" if same != name else f"`{name}` is no longer `{then[name][1]}`")
            elif form != then[name][0]:
                found.append(f"`{name}` has {form}, and had {then[name][0]}")
        found += [f"`{name}` is gone" for name in then if name not in now._parameters]
        found += [f"the buffer `{name}` is gone" for name in sorted(self._buffers - now._buffers)]
        if found or not self._is_settled:  # (with parameters, which layers have changed goes without saying)
            return found
        for name, kind in now._layers.items():
            before = self._layers.get(name, kind)
            if name not in self._layers:
                found.append(f"the layer `{name}` ({kind}) is new")
            elif before != kind:
                found.append(f"the layer `{name}` is a {kind}, and was a {before}")
        return found + [f"the layer `{name}` is gone" for name in self._layers if name not in now._layers]


def _is_saved(model: nn.Module, name: str) -> bool:
    owner, _, own_name = name.rpartition(".")
    return own_name not in model.get_submodule(owner)._non_persistent_buffers_set
