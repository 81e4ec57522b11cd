"""The objects that a traced run trains: their names and digests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lockstep._base.digest import digest
from lockstep._data.batches import map_tensors
from lockstep._listener import Listener, Stage
from lockstep._world.comm.dtensors import full_tensor

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class Subjects(Listener):
    """The prepared objects. Must precede the listeners that use it.

    Args:
        registered: adapters of the registered objects, by name: see ``RunState.registered``.
    """

    stage = Stage.EARLY

    def __init__(self, registered: Mapping[str, Any] | None = None) -> None:
        self._registered = {} if registered is None else registered
        self._models: list[tuple[str, nn.Module]] = []
        self._averages: list[tuple[str, nn.Module]] = []
        self._optimizers: list[tuple[str, Optimizer]] = []
        self._others: list[tuple[str, Any]] = []
        self.parameters: dict[Tensor, str] = {}
        """The models' parameters, with their names."""

    @override
    def prepared(self, item: Any) -> None:
        kinds: list[tuple[type, list[Any]]] = [
            (AveragedModel, self._averages),
            (nn.Module, self._models),
            (Optimizer, self._optimizers),
            (object, self._others),
        ]
        known = next(known for kind, known in kinds if isinstance(item, kind))
        # There is usually one model and one optimizer, whose names need no prefix.
        plain = known is self._models or known is self._optimizers
        prefix = "" if plain and not known else f"{type(item).__name__} {len(known) + 1}: "
        known.append((prefix, item))
        if known is self._models:
            self.parameters.update((tensor, prefix + name) for name, tensor in item.named_parameters())

    def prefix_of(self, item: Any) -> str | None:
        """The prefix of the names of a model's parameters; None: it is not a model."""
        return next((prefix for prefix, model in self._models if model is item), None)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The layers of all models, with their names."""
        for prefix, model in self._models:
            yield from ((prefix + name, module) for name, module in model.named_modules())

    def layers(self) -> dict[str, list[str]]:
        """Which layers of the models make a shard's result depend on its size, or on chance: see
        the trace's ``layers``."""
        training = [(name, module) for name, module in self.modules() if module.training]
        return {
            "batch_norm": [
                name
                for name, module in self.modules()
                if isinstance(module, _BATCH_NORM) and (module.training or module.running_mean is None)
            ],
            "sync_batch_norm": [name for name, module in training if isinstance(module, nn.SyncBatchNorm)],
            "dropout": [name for name, module in training if isinstance(module, _DROPOUT) and module.p > 0],
        }

    def hook_gradients(self, hooked: set[Tensor], note: Callable[[str, Tensor], None]) -> None:
        """Have ``note`` called with a parameter's name and each of its new gradients, before
        anything can change these.

        Hooks the parameters that are not in ``hooked``, and adds them to it. Call it in every
        shard, since parameters may be unfrozen."""
        for parameter, name in self.parameters.items():
            if parameter.requires_grad and parameter not in hooked:
                hooked.add(parameter)
                parameter.register_hook(functools.partial(note, name))  # type: ignore[no-untyped-call]

    def gradients(self) -> dict[str, Tensor]:
        """``.grad`` of the parameters that have one; with ``fsdp`` this rank's part of each, a
        DTensor."""
        return {name: parameter.grad for parameter, name in self.parameters.items() if parameter.grad is not None}

    def digests(self) -> dict[str, dict[str, str]]:
        """``weights``, ``buffers`` and ``state``: digests by name, for a line of the trace. Every
        rank must call it: with ``fsdp`` tensors are gathered, one at a time, so that the digests
        are of whole tensors."""
        weights: dict[str, str] = {}
        buffers: dict[str, str] = {}
        state: dict[str, str] = {}
        for prefix, model in self._models:
            weights.update((prefix + name, _value(tensor)) for name, tensor in model.named_parameters())
            buffers.update((prefix + name, _value(tensor)) for name, tensor in model.named_buffers())
        for prefix, optimizer in self._optimizers:
            state.update((prefix + name, _value(value)) for name, value in self._optimizer_state(optimizer))
        for prefix, average in self._averages:
            tensors = [*average.named_parameters(), *average.named_buffers()]
            state.update((prefix + name, _value(tensor)) for name, tensor in tensors)
        for prefix, item in self._others:
            state.update((prefix + name, _value(value)) for name, value in item.state_dict().items())
        for name, content in self._registered.items():
            if not content.is_compared:
                continue
            whole = ((part, map_tensors(full_tensor, value)) for part, value in content.compared())
            state.update((f"the registered {name!r} ({part})", _value(value)) for part, value in whole)
        return {"weights": weights, "buffers": buffers, "state": state}

    def _optimizer_state(self, optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
        for number, group in enumerate(optimizer.param_groups):
            for option, value in group.items():
                if option != "params":
                    yield f"{option} of group {number}", value
            for position, parameter in enumerate(group["params"]):
                name = self.parameters.get(parameter, f"parameter {position} of group {number}")
                for slot, value in optimizer.state.get(parameter, {}).items():
                    yield f"{slot} of {name}", value


def _value(value: Any) -> str:
    """A number, in readable form after an equals sign; the digest of anything else, of tensors as a
    whole."""
    if value is None or isinstance(value, (bool, int, float)):
        return f"={value!r}"
    return digest(full_tensor(value) if isinstance(value, Tensor) else value)
