"""torchmetrics objects of the module: what a step gives them reaches every rank, in the order of
shards and batches."""

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
"""The metric's name, whether it was called (else updated), and the arguments."""
_SHADOWED = ("forward", "update", "compute", "reset")


def metrics_of(module: LightningModule) -> dict[str, Metric | MetricCollection]:
    """The metrics and collections of a module, by name, those inside of others included."""
    return {name: part for name, part in module.named_modules() if isinstance(part, Metric | MetricCollection)}


class Metrics:
    """The metrics of a module. Every rank has all updates, so that none of them communicates from
    here on.

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
        """The name of each metric, by its id."""
        return {id(metric): name for name, metric in self._metrics.items()}

    def refresh(self) -> None:
        """Look again for the module's metrics: a hook may have put others in their place.

        Raises:
            UsageError: there is one of a new name.
        """
        now = metrics_of(self._module)
        for name, metric in now.items():
            if (known := self._metrics.get(name)) is metric:
                continue
            if known is None:
                raise UsageError(
                    f"self.{name}, a {type(metric).__name__}, was made after the trainer had begun: the run's checkpoints "
                    "restore the metrics that are there at the beginning, so a resumed run would not have it. Make all "
                    "metrics in __init__. In place of MetricTracker, which makes one for each epoch, log the value in each "
                    "epoch, and keep the best by torchmetrics.MaxMetric."
                )
            _disable_sync(metric)
            self._trials.pop(name, None)
        _refuse_hidden(self._module)
        self._metrics = now

    def shadow(self, updates: list[Update], step: str) -> None:
        """Until ``restore``, note updates instead of making them. A call returns the value of its
        arguments alone."""
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
        """Make the metrics as they were."""
        for metric in self._metrics.values():
            kept = vars(metric)
            own = kept.pop("_lockstep_kept")
            for key in _SHADOWED:
                del kept[key]
            kept.update(own)

    def replay(self, shards: list[list[Update]], to_device: Callable[[Tensor], Tensor], *, with_values: bool) -> None:
        """Update the metrics by what all shards of a batch gave them, in their order.

        Args:
            shards: the updates of each shard.
            to_device: moves a tensor to where the metrics are.
            with_values: whether metrics that were called get the value of this batch, which
                ``self.log(..., on_step=True)`` shows.
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
        """An empty copy of a metric, for values of one shard or batch."""
        if name not in self._trials:
            self._trials[name] = trial = copy.deepcopy(self._metrics[name])
            trial.reset()
            _disable_sync(trial)
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
            f"self.{name}.{call}() inside {step}: there the metric is not yet given what other processes' shards and "
            "batches have "
            f"for it, so the result would depend on their number. Log the object, self.log({name!r}, self.{name}), or call "
            f"{call}() in a hook such as on_validation_epoch_end."
        )

    return refuse


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()  # the script may overwrite its own


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
                f"{found} is a torchmetrics object, and no part of the module: updates in a step would stay on the process "
                "that runs it. Make it an attribute of the module, or use torch.nn.ModuleList, torch.nn.ModuleDict or "
                "torchmetrics.MetricCollection in place of lists, dicts and other objects."
            )


def _hidden_in(value: Any, name: str, depth: int) -> str | None:
    """How the script calls a metric that is in lists, mappings or plain objects; None: there is
    none."""
    if isinstance(value, Metric | MetricCollection):
        return name
    for key, item in items_of(value) if depth else ():
        if (found := _hidden_in(item, name + key, depth - 1)) is not None:
            return found
    return None
