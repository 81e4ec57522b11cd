"""Prepared models that can be called with promises."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from lockstep.integrations.accelerate._program import PerShard
from lockstep.integrations.accelerate._promise import note, promises_in


def per_shard(function: Callable[..., Any], stamp: Callable[[], Any] = lambda: None, name: str = "") -> Callable[..., Any]:
    """A function that notes its calls if promises are among the arguments, and is called at once if
    none are.

    Args:
        function: called once per shard, with the shard's values in place of the promises.
        stamp: what must be the same when a call is noted and when it is made.
        name: for errors; empty: the function's.
    """
    name = name or getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function, updated=())
    def noting(*args: Any, **kwargs: Any) -> Any:
        if next(promises_in((args, kwargs)), None) is None:
            return function(*args, **kwargs)
        return note(PerShard(function, stamp, name), *args, **kwargs)

    return noting


def with_noted_calls(model: nn.Module) -> nn.Module:
    """Let a prepared model, and its methods, be called with promises. Returns the model."""
    kind = type(model)

    def stamp() -> Any:
        return model.training, sum(parameter._version for parameter in model.parameters())

    run = per_shard(functools.partial(kind.__call__, model), stamp, "model")

    def call(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    def attribute(self: nn.Module, name: str) -> Any:
        value: Any = kind.__getattr__(self, name)
        # model.generate(batch["input_ids"]): a method of the script's model
        return per_shard(value, stamp, f"model.{name}") if inspect.ismethod(value) else value

    noting = type(kind.__name__, (kind,), {"__call__": call, "__getattr__": attribute})
    # a prepared model passes other assignments on to the script's model
    object.__setattr__(model, "__class__", noting)
    return model
