"""What lockstep's checkpoints hold of Lightning's trainer, beside weights, optimizers, schedules
and loaders."""

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
    """Everything that must be equal on all ranks: loops, logged values, metrics, callbacks, and
    what the script's module and data module put into Lightning's checkpoints.

    Args:
        trainer: the trainer.
        ignored: callbacks without state.
    """

    def __init__(self, trainer: Trainer, ignored: Callable[[Callback], bool]) -> None:
        self._trainer = trainer
        self._ignored = ignored
        self.is_restored = False
        self._last: dict[str, Any] | None = None
        self._callback_states = CallbackStates(self._callbacks)

    def freeze(self) -> None:
        """The fit is over: what the trainer validates or tests from here on is no part of it."""
        self._last = copy.deepcopy(self.state_dict())
        self._callback_states.freeze()

    def state_dict(self) -> dict[str, Any]:
        """The state, as a tree of tensors and plain values."""
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
        """Restore the state."""
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
        """The states of callbacks as a whole, to be registered beside this."""
        return self._callback_states

    def _callbacks(self) -> list[tuple[str, Callback]]:
        """The callbacks with a state, with a key for each."""
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
        """What ``on_save_checkpoint`` of the module adds to a checkpoint."""
        checkpoint = self._checkpoint()
        before = set(checkpoint)
        module.on_save_checkpoint(checkpoint)
        return {name: value for name, value in checkpoint.items() if name not in before}


class CallbackStates:
    """The states of callbacks. They hold paths and clocks, so they need not be equal on all ranks,
    and rank 0's count. Their numbers are in ``RunState``, where they are compared."""

    def __init__(self, callbacks: Callable[[], list[tuple[str, Callback]]]) -> None:
        self._callbacks = callbacks
        self._last: dict[str, Any] | None = None

    def freeze(self) -> None:
        """The fit is over: a checkpoint that is loaded to test, say, is no part of it."""
        self._last = self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """The state of each callback, by its key."""
        if self._last is not None:
            return self._last
        return {key: host.callback_state(callback) for key, callback in self._callbacks()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states."""
        for key, callback in self._callbacks():
            if state.get(key):
                host.load_callback_state(callback, state[key])


def _numbers(value: Any) -> Any:
    """Without texts: paths differ from launch to launch, also as keys."""
    if isinstance(value, Mapping):
        return [_numbers(item) for item in value.values() if not isinstance(item, str)]
    return value


def _of_metric(metric: Metric) -> dict[str, Any]:
    """All that updates change: its states, and attributes of other plain kinds."""
    return {name: value for name, value in vars(metric).items() if name != "_defaults" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list) and all(isinstance(item, Tensor) for item in value))


def _to_metric(metric: Any, kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        if name in metric._defaults:
            setattr(metric, name, value)
        else:
            vars(metric)[name] = value
