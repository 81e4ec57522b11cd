"""Names the layers of prepared models that raise an error on a GPU, before the first step."""

from __future__ import annotations

from typing import Any

from torch import nn
from typing_extensions import override

from lockstep._base.nondeterministic_operations import WAYS, Operation
from lockstep._base.reports import NOTICE, Report, publish
from lockstep._listener import Listener
from lockstep._world.machine.sizes import counted

_MOST = 5
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""Prefixes that ``torch.compile`` and others add to the names of the script's layers."""


def refused_layers(model: nn.Module) -> list[tuple[str, Operation]]:
    """The names of a model's layers whose pass on a GPU PyTorch refuses while kernels are
    deterministic, each with its operation."""
    found = []
    for name, layer in model.named_modules():
        if (operation := _operation_of(layer)) is not None:
            found.append((_plain(name) or type(layer).__name__, operation))
    return found


def _plain(name: str) -> str:
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def _operation_of(layer: nn.Module) -> Operation | None:
    for kind in type(layer).__mro__:
        if not issubclass(kind, nn.Module) or not kind.__module__.startswith("torch.nn."):
            continue
        for operation, way in WAYS.get(f"torch.nn.{kind.__name__}", ()):
            # A subclass of the script's may compute something else.
            if type(layer).forward is kind.forward and way.leads(vars(layer)):
                return operation
    return None


class RefusedLayers(Listener):
    """A listener that prints these layers, for a run with deterministic kernels. A layer may be
    unused, so it is no error."""

    @override
    def prepared(self, item: Any) -> None:
        """Prints the layers of a model."""
        layers = refused_layers(item) if isinstance(item, nn.Module) else []
        if not layers:
            return
        parts = [f"{counted(len(layers), 'layer')} of {type(item).__name__} will raise an error on this device when used:"]
        by_operation: dict[Operation, list[str]] = {}
        for name, operation in layers:
            by_operation.setdefault(operation, []).append(name)
        for operation, names in by_operation.items():
            more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
            parts.append(f"  {', '.join(names[:_MOST])}{more}: {operation.advice()}")
        parts.append("PyTorch has no deterministic kernels for them. More: docs/deterministic-kernels.md")
        publish(Report(kind=NOTICE, text="\n".join(parts), code="layers-without-kernels", is_warning=False))
