"""The torchmetrics objects of a module, updated on every rank in the order of shards and batches.

A step updates a metric with the samples of one shard. During a step, updates are only recorded
(``shadow``). After the step, all ranks share the updates and apply them in the order of the shards
(``replay``), so that metrics are equal on every rank and need no communication."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NoReturn

from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lockstep._base.errors import UsageError
from lockstep._data.batches import map_tensors
from lockstep.integrations.lightning._contents import items_of

Update = tuple[str, bool, tuple[Any, ...], dict[str, Any]]
"""An update of a metric: its name, whether the metric was called (instead of ``update``), and the
arguments."""
_SHADOWED = ("forward", "update", "compute", "reset")


def metrics_of(module: LightningModule) -> dict[str, Metric | MetricCollection]:
    """Returns the metrics and collections of a module by name, including metrics inside others."""
    return {name: part for name, part in module.named_modules() if isinstance(part, Metric | MetricCollection)}


class Metrics:
    """The metrics of a module. Their communication is disabled, since every rank gets all updates.

    Args:
        module: the module, on its device.

    Raises:
        UsageError: a metric is in a plain list or mapping, where neither Lightning nor lockstep
            finds it.
    """

    def __init__(self, module: LightningModule) -> None:
        _refuse_hidden(module)
        self._module = module
        self._metrics = metrics_of(module)
        for metric in self._metrics.values():
            _disable_sync(metric)
        self._trials: dict[str, Metric | MetricCollection] = {}

    @property
    def names(self) -> dict[int, str]:
        """The name of each metric by its ``id()``."""
        return {id(metric): name for name, metric in self._metrics.items()}

    def refresh(self) -> None:
        """Updates the list of the module's metrics, since a hook may have replaced some.

        Raises:
            UsageError: there is a metric with a new name.
        """
        now = metrics_of(self._module)
        for name, metric in now.items():
            if (known := self._metrics.get(name)) is metric:
                continue
            if known is None:
                raise UsageError(
                    f"self.{name}, a {type(metric).__name__}, was created after the training started, so a resumed run could "
                    "not restore it. Create all metrics in __init__. Instead of MetricTracker, log the value in each epoch "
                    "and use torchmetrics.MaxMetric for the best.",
                    code="metric-created-later",
                )
            _disable_sync(metric)
            # All of them, since the metric may be part of another, which has a trial, too.
            self._trials.clear()
        _refuse_hidden(self._module)
        self._metrics = now

    def shadow(self, updates: list[Update], step: str) -> None:
        """Records updates instead of applying them, until ``restore``. Calling a metric returns the
        value of its arguments only."""
        self.refresh()
        for name, metric in self._metrics.items():
            trial = self._trial(name)
            replaced = {
                "forward": _called(name, trial, updates),
                "update": _updated(name, updates),
                "compute": _refused(name, "compute", step),
                "reset": _refused(name, "reset", step),
            }
            kept = vars(metric)
            kept["_lockstep_kept"] = {key: kept[key] for key in _SHADOWED if key in kept}
            kept.update(replaced)

    def restore(self) -> None:
        """Ends the recording of updates."""
        for metric in self._metrics.values():
            kept = vars(metric)
            own = kept.pop("_lockstep_kept")
            for key in _SHADOWED:
                del kept[key]
            kept.update(own)

    def replay(self, shards: list[list[Update]], to_device: Callable[[Tensor], Tensor], *, with_values: bool) -> None:
        """Applies the updates of all shards of a batch, in shard order.

        Args:
            shards: the updates of each shard.
            to_device: moves a tensor to the device of the metrics.
            with_values: whether to compute the value of this batch for metrics that were called,
                which ``self.log(..., on_step=True)`` shows.
        """
        self.refresh()
        calls: dict[str, list[tuple[Any, Any]]] = {}
        for name, is_call, args, kwargs in (update for shard in shards for update in shard):
            args, kwargs = map_tensors(to_device, (args, kwargs))
            self._metrics[name].update(*args, **kwargs)
            if is_call and with_values:
                calls.setdefault(name, []).append((args, kwargs))
        for name, given in calls.items():
            trial = self._trial(name)
            trial.reset()
            for args, kwargs in given:
                trial.update(*args, **kwargs)
            value = trial.compute()
            metric = self._metrics[name]
            if isinstance(metric, MetricCollection):
                for key, member in metric.items(keep_base=True, copy_state=False):
                    member._forward_cache = trial[key].compute()
            else:
                metric._forward_cache = value
            trial.reset()

    def _trial(self, name: str) -> Any:
        """Returns an empty copy of a metric, for values of one shard or batch. Like the metric, it
        does not communicate."""
        if name not in self._trials:
            self._trials[name] = trial = copy.deepcopy(self._metrics[name])
            trial.reset()
        return self._trials[name]


def _called(name: str, trial: Any, updates: list[Update]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        updates.append((name, True, *map_tensors(_kept, (args, kwargs))))
        trial.reset()
        try:
            return trial(*args, **kwargs)
        finally:
            trial.reset()

    return forward


def _updated(name: str, updates: list[Update]) -> Callable[..., None]:
    def update(*args: Any, **kwargs: Any) -> None:
        updates.append((name, False, *map_tensors(_kept, (args, kwargs))))

    return update


def _refused(name: str, call: str, step: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise UsageError(
            f"self.{name}.{call}() inside {step} is not supported: the metric lacks the updates of other processes, so the "
            f"result would depend on their number. Log the object, self.log({name!r}, self.{name}), or call {call}() in a "
            "hook such as on_validation_epoch_end.",
            code="metric-read-in-step",
        )

    return refuse


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()  # The script may overwrite the tensor after the call.


def _disable_sync(metric: Metric | MetricCollection) -> None:
    for part in metric.modules():
        if isinstance(part, Metric):
            part.distributed_available_fn = _never


def _never() -> bool:
    return False


def _refuse_hidden(module: LightningModule) -> None:
    for name, value in vars(module).items():
        if not name.startswith("_") and (found := _hidden_in(value, f"self.{name}", 3)) is not None:
            raise UsageError(
                f"{found} is a torchmetrics object in a plain container, so its updates would stay on one process. Make it an "
                "attribute of the module, or use torch.nn.ModuleList, torch.nn.ModuleDict or torchmetrics.MetricCollection.",
                code="metric-in-container",
            )


def _hidden_in(value: Any, name: str, depth: int) -> str | None:
    """Returns the name of a metric inside lists, mappings or plain objects; None: there is none."""
    if isinstance(value, Metric | MetricCollection):
        return name
    for key, item in items_of(value) if depth else ():
        if (found := _hidden_in(item, name + key, depth - 1)) is not None:
            return found
    return None
