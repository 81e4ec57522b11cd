"""Models and functions that accept promises."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from lockstep.integrations.accelerate._program import PerShard
from lockstep.integrations.accelerate._promise import note, promises_in


def per_shard(function: Callable[..., Any], stamp: Callable[[], Any] = lambda: None, name: str = "") -> Callable[..., Any]:
    """Returns a function that records its calls if an argument is a promise, and otherwise calls
    ``function`` immediately.

    Args:
        function: the function, which is called once per shard with the shard's values.
        stamp: returns a value that must not change between recording a call and making it.
        name: the name for errors; empty: the function's name.
    """
    name = name or getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function, updated=())
    def noting(*args: Any, **kwargs: Any) -> Any:
        if next(promises_in((args, kwargs)), None) is None:
            return function(*args, **kwargs)
        return note(PerShard(function, stamp, name), *args, **kwargs)

    return noting


def with_noted_calls(model: nn.Module) -> nn.Module:
    """Makes a prepared model and its methods accept promises. Returns the model."""
    kind = type(model)

    def stamp() -> Any:
        # PyTorch counts changes in place of each tensor in _version: an optimizer step between the
        # recorded call and backward() would otherwise silently change the result.
        return model.training, sum(parameter._version for parameter in model.parameters())

    run = per_shard(functools.partial(kind.__call__, model), stamp, "model")

    def call(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    def attribute(self: nn.Module, name: str) -> Any:
        value: Any = kind.__getattr__(self, name)
        # For example model.generate(batch["input_ids"]).
        return per_shard(value, stamp, f"model.{name}") if inspect.ismethod(value) else value

    noting = type(kind.__name__, (kind,), {"__call__": call, "__getattr__": attribute})
    # A prepared model forwards assignments to the script's model, which must keep its class.
    object.__setattr__(model, "__class__", noting)
    return model
