"""The prepared model: the user's model, with its forward pass routed through the run's strategy and
precision.

It is a proxy that shares the registries of the user's model, not a wrapper with a ``.module``:
names of parameters, ``state_dict()`` and attributes stay the same, so that scripts and checkpoints
need no prefix. The user's own model still works alone, for example for inference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from lockstep._data.batch import GlobalBatch
from lockstep._prepare.forward_errors import raise_better
from lockstep._prepare.model_precision import ModelPrecision

_OF_WRAPPERS = {
    "module": "it has the names, attributes and state_dict() of your model. Remove `.module`; the model itself is "
    "team.unwrap(model).",
    "no_sync": "gradients are synchronized when a loop over batch.shards ends. To accumulate them, call optimizer.step() every "
    "few steps, or set join(accumulate=).",
}
"""The attributes of DistributedDataParallel that scripts use, and what to write instead."""


class PreparedModel(nn.Module):
    """A proxy of the user's model, with the same parameters, buffers, submodules, names, methods
    and attributes.

    ``state_dict()`` has the names of the user's model. Copying or pickling gives a plain copy of
    the user's model. ``team.unwrap(model)`` returns the user's model.

    Args:
        model: the user's model, on its device.
        forward: the callable for forward passes with gradients.
        model_precision: the formats of the passes.
        guard: a function that is called with the name of a call that ``batch.shards`` refuses.
    """

    def __init__(
        self, model: nn.Module, forward: Callable[..., Any], model_precision: ModelPrecision, guard: Callable[[str], None]
    ) -> None:
        super().__init__()
        attributes = self.__dict__
        # The registries are shared with the user's model: additions there are visible here, and no
        # name gets a prefix.
        for registry in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            attributes[registry] = model.__dict__[registry]
        attributes["_wrapped"] = model
        attributes["_forward"] = forward
        attributes["_model_precision"] = model_precision
        attributes["_is_cast"] = model_precision.precision.narrow is not None
        attributes["_guard"] = guard
        attributes.pop("training", None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the user's forward pass. Floating-point results of a 16-bit pass are returned in
        float32, for the loss."""
        if args and isinstance(args[0], GlobalBatch):
            args[0].refuse(f"{type(self._wrapped).__name__}(batch)")
        # Without gradients (evaluation) ranks may run different numbers of passes, so the strategy
        # is bypassed.
        run = self._forward if torch.is_grad_enabled() else self._wrapped
        try:
            return self._model_precision.forward(run, args, kwargs) if self._is_cast else run(*args, **kwargs)
        except (ValueError, RuntimeError) as error:
            raise_better(error, self._wrapped)
            raise

    @property
    def training(self) -> bool:
        """Whether the user's model is in training mode."""
        mode: bool = self.__dict__["_wrapped"].training
        return mode

    @training.setter
    def training(self, mode: bool) -> None:
        if "_wrapped" in self.__dict__:  # not yet when nn.Module.__init__ sets it
            self.__dict__["_wrapped"].training = mode

    def train(self, mode: bool = True) -> PreparedModel:
        """Calls ``train`` of the user's model."""
        self._wrapped.train(mode)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls ``zero_grad`` of the user's model. An error inside ``batch.shards``."""
        self._guard("model.zero_grad()")
        self._wrapped.zero_grad(set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Returns ``state_dict()`` of the user's model."""
        return self._wrapped.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``load_state_dict`` of the user's model."""
        return self._wrapped.load_state_dict(*args, **kwargs)

    # A backward hook is registered on the user's model: registered here, it would wrap the outputs
    # of this module, but be stored in the registry of the user's model.

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """Registers the hook on the user's model."""
        return unwrap(self).register_full_backward_hook(*args, **kwargs)

    def register_full_backward_pre_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """Registers the hook on the user's model."""
        return unwrap(self).register_full_backward_pre_hook(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__["_wrapped"]
            if name in _OF_WRAPPERS and not hasattr(model, name):
                raise AttributeError(
                    f"a prepared model has no {name!r}, unlike DistributedDataParallel: {_OF_WRAPPERS[name]}"
                ) from None
            return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        wrapped = self.__dict__.get("_wrapped")
        if wrapped is None:
            super().__setattr__(name, value)
        else:
            setattr(wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._wrapped, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(unwrap(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickled as the user's model: a copy in another process has no run that it could belong to.
        return _itself, (self._wrapped,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._wrapped!r})"


_CONTAINER_METHODS = ("__len__", "__getitem__", "__setitem__", "__delitem__", "__iter__", "__contains__")


def wrap_model(
    model: nn.Module, forward: Callable[..., Any], model_precision: ModelPrecision, guard: Callable[[str], None]
) -> PreparedModel:
    """Returns a PreparedModel for ``model``. It can be indexed or iterated if the model can, and
    has the methods of ``nn.Module`` that the model overrides. (Python looks up both on the
    class.)"""

    def pass_on(name: str) -> Callable[..., Any]:
        def method(self: PreparedModel, *args: Any, **kwargs: Any) -> Any:
            own = unwrap(self)
            result = getattr(own, name)(*args, **kwargs)
            return self if result is own else result

        return method

    of_containers = [name for name in _CONTAINER_METHODS if hasattr(model, name)]
    methods = {name: pass_on(name) for name in (*of_containers, *_overridden(type(model)))}
    kind = type(PreparedModel.__name__, (PreparedModel,), methods) if methods else PreparedModel
    made: PreparedModel = kind(model, forward, model_precision, guard)
    return made


def _overridden(kind: type[nn.Module]) -> list[str]:
    """Returns the public methods of ``nn.Module`` that a class overrides and PreparedModel does
    not."""
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    of_modules = {name for name, value in vars(nn.Module).items() if callable(value) and not name.startswith("_")}
    return sorted({name for part in own for name in vars(part)} & of_modules - vars(PreparedModel).keys())


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the user's model."""
    if isinstance(model, PreparedModel):
        wrapped: nn.Module = model.__dict__["_wrapped"]
        return wrapped
    return model


def _itself(model: nn.Module) -> nn.Module:
    return model
