"""The state of Lightning's trainer in lockstep's checkpoints, in addition to weights, optimizers,
schedules and loaders."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torchmetrics import Metric

from lockstep.integrations.lightning import _host as host
from lockstep.integrations.lightning._metrics import metrics_of

_PLAIN = (Tensor, bool, int, float, str, type(None))


class RunState:
    """The state that must be equal on all ranks: loops, logged values, metrics, numbers of
    callbacks, and the entries that the script's module and data module add to Lightning's
    checkpoints.

    Args:
        trainer: the trainer.
        ignored: returns whether a callback has no state to save.
    """

    def __init__(self, trainer: Trainer, ignored: Callable[[Callback], bool]) -> None:
        self._trainer = trainer
        self._ignored = ignored
        self.is_restored = False
        self._last: dict[str, Any] | None = None
        self._callback_states = CallbackStates(self._callbacks)

    def freeze(self) -> None:
        """Fixes the state at the end of the fit, so that a later validation or test does not change
        it."""
        self._last = copy.deepcopy(self.state_dict())
        self._callback_states.freeze()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as a tree of tensors and plain values."""
        if self._last is not None:
            return self._last
        trainer = self._trainer
        module, data = trainer.lightning_module, host.data_module(trainer)
        return {
            "loops": host.loop_state(trainer),
            "metrics": {
                name: _of_metric(metric) for name, metric in metrics_of(module).items() if isinstance(metric, Metric)
            },
            "callbacks": {
                key: _numbers(host.callback_state(callback))
                for key, callback in self._callbacks()
                if not isinstance(callback, Timer)
            },
            "module": self._added_by(module) if is_overridden("on_save_checkpoint", module) else {},
            "data": data.state_dict() if data is not None else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state."""
        self.is_restored = True
        state = copy.deepcopy(state)
        trainer = self._trainer
        module, data = trainer.lightning_module, host.data_module(trainer)
        host.load_loop_state(trainer, state["loops"])
        metrics = metrics_of(module)
        for name, kept in state["metrics"].items():
            _to_metric(metrics[name], kept)
        if state["module"]:
            module.on_load_checkpoint({**self._checkpoint(), **state["module"]})
        if data is not None and state["data"]:
            data.load_state_dict(state["data"])

    def callbacks(self) -> CallbackStates:
        """Returns the full states of callbacks, which must be registered separately."""
        return self._callback_states

    def _callbacks(self) -> list[tuple[str, Callback]]:
        """Returns the callbacks with a state, each after its key."""
        found: dict[str, Callback] = {}
        for callback in host.callbacks(self._trainer):
            key, number = callback.state_key, 1
            while key in found:
                number += 1
                key = f"{callback.state_key} {number}"
            found[key] = callback
        return [(key, callback) for key, callback in found.items() if not self._ignored(callback)]

    def _checkpoint(self) -> dict[str, Any]:
        trainer, module = self._trainer, self._trainer.lightning_module
        return {"epoch": trainer.current_epoch, "global_step": trainer.global_step, "state_dict": module.state_dict()}

    def _added_by(self, module: LightningModule) -> dict[str, Any]:
        """Returns the entries that the module's ``on_save_checkpoint`` adds to a checkpoint."""
        checkpoint = self._checkpoint()
        before = set(checkpoint)
        module.on_save_checkpoint(checkpoint)
        return {name: value for name, value in checkpoint.items() if name not in before}


class CallbackStates:
    """The full states of callbacks. They contain paths and times, which may differ between ranks,
    so rank 0's are saved. ``RunState`` contains their numbers, which ranks compare."""

    def __init__(self, callbacks: Callable[[], list[tuple[str, Callback]]]) -> None:
        self._callbacks = callbacks
        self._last: dict[str, Any] | None = None

    def freeze(self) -> None:
        """Fixes the states at the end of the fit, so that loading a checkpoint for a test does not
        change them."""
        self._last = self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each callback by its key."""
        if self._last is not None:
            return self._last
        return {key: host.callback_state(callback) for key, callback in self._callbacks()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the states."""
        for key, callback in self._callbacks():
            if state.get(key):
                host.load_callback_state(callback, state[key])


def _numbers(value: Any) -> Any:
    """Returns a value without texts, also as keys, since paths differ between launches."""
    if isinstance(value, Mapping):
        return [_numbers(item) for item in value.values() if not isinstance(item, str)]
    return value


def _of_metric(metric: Metric) -> dict[str, Any]:
    """Returns everything that updates change: the metric's states and its plain attributes."""
    return {name: value for name, value in vars(metric).items() if name != "_defaults" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list) and all(isinstance(item, Tensor) for item in value))


def _to_metric(metric: Any, kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        if name in metric._defaults:
            setattr(metric, name, value)
        else:
            vars(metric)[name] = value
