"""All private parts of Lightning that lockstep uses, in one place.

A strategy is public in Lightning, but not the order in which Lightning's loops call it. lockstep
depends on this order, in ``lightning.pytorch``:

- ``strategy.training_step`` runs inside the closure that the optimizer's ``step`` calls. Between it
  and ``strategy.backward``, Lightning zeroes gradients at the first batch of an accumulation.
  Therefore, gradients are taken off in the first and put back in the second.
- ``strategy.on_train_start`` runs after all other hooks of that name, before the first epoch. The
  run is restored there, because no hook changes the state after it. The fit loop then checks
  ``done``.
- The epoch loop fetches a batch after validation, schedules and callbacks of the batch before. A
  checkpoint of the run can be saved at that moment.
- A method of the signal connector registers signal handlers, after ``strategy.setup``.
- ``fit_loop.on_advance_start`` skips the hooks of an epoch's begin in the stage
  ``restarted_mid_epoch``; ``epoch_loop.reset`` sets the counts of the epoch to zero.

``missing()`` checks the source of the installed Lightning for this order.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.core import optimizer
from lightning.pytorch.loops import fit_loop, training_epoch_loop
from lightning.pytorch.loops.optimization import automatic
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from lightning.pytorch.strategies import strategy as strategies
from lightning.pytorch.trainer import trainer as trainers
from lightning.pytorch.trainer.connectors.logger_connector import result
from torch import Tensor
from torch.utils.data import SequentialSampler

from lockstep._base.errors import UsageError

_RELIED_ON: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (automatic.Closure, "closure", ("self._step_fn()", "self._zero_grad_fn()", "self._backward_fn(")),
    (automatic._AutomaticOptimization, "_training_step", ('"training_step"', "accumulate_grad_batches")),
    (automatic._AutomaticOptimization, "_make_zero_grad_fn", ("batch_idx % self.trainer.accumulate_grad_batches",)),
    (fit_loop._FitLoop, "run", ("self.setup_data()", "self.skip", "self.reset()", "self.on_run_start()", "self.done")),
    (
        fit_loop._FitLoop,
        "on_run_start",
        ('lightning_module_hook(trainer, "on_train_start")', '_strategy_hook(trainer, "on_train_start")'),
    ),
    (fit_loop._FitLoop, "on_run_end", ('_strategy_hook(trainer, "on_train_end")',)),
    (fit_loop._FitLoop, "on_advance_start", ("restarted_mid_epoch", "increment_ready()", '"on_train_epoch_start"')),
    (training_epoch_loop._TrainingEpochLoop, "run", ("self.reset()", "self.on_run_start(", "self.done", "self.advance(")),
    (training_epoch_loop._TrainingEpochLoop, "on_run_start", ("data_fetcher.fetched += self.batch_progress.current.ready",)),
    (
        training_epoch_loop._TrainingEpochLoop,
        "advance",
        ("next(data_fetcher)", "_on_before_batch_transfer", '"batch_to_device"'),
    ),
    (
        trainers.Trainer,
        "_run",
        ("self.strategy.setup(self)", "self._signal_connector.register_signal_handlers()", "_run_stage"),
    ),
    (optimizer, "_validate_multiple_optimizers_support", ("automatic_optimization", "len(optimizers) > 1", "RuntimeError")),
    (strategies.Strategy, "setup", ("convert_module", "model_to_device", "setup_optimizers", "setup_precision_plugin")),
    (result._ResultMetric, "update", ("self.value", "self.cumulated_batch_size", "value._forward_cache")),
)
"""Functions of Lightning, with texts that must occur in their source in this order."""
_KEPT_OF_CHECKPOINT = ("current_score", "_last_global_step_saved", "_last_checkpoint_saved")
_KEPT_OF_RESULT = ("value", "cumulated_batch_size", "has_reset", "_forward_cache", "_update_count")


def missing() -> list[str]:
    """Returns the ways in which the installed Lightning differs from what this file depends on."""
    found = []
    for owner, name, parts in _RELIED_ON:
        function = getattr(owner, name, None)
        source = "" if function is None else inspect.getsource(function)
        place = 0
        for part in parts:
            place = source.find(part, place)
            if place < 0:
                found.append(f"{_name_of(owner)}.{name}: {part} is missing or in another order")
                break
    return found


def _name_of(owner: Any) -> str:
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else str(owner.__name__)


# Batches


def disable_batch_hook(module: LightningModule) -> None:
    """Makes the loops skip ``on_before_batch_transfer`` for global batches, whose samples no
    process has. ``to_shard`` calls the hook for each shard."""
    vars(module)["_on_before_batch_transfer"] = lambda batch, dataloader_idx=0: batch


def enable_batch_hook(module: LightningModule) -> None:
    """Undoes ``disable_batch_hook``."""
    vars(module).pop("_on_before_batch_transfer", None)


def to_shard(trainer: Trainer, samples: Any, device: torch.device, dataloader_idx: int) -> Any:
    """Returns the samples of one shard after all that Lightning does to a batch before a step:
    conversion, the transfer and its hooks."""
    module = trainer.lightning_module
    samples = trainer.precision_plugin.convert_input(samples)
    samples = type(module)._on_before_batch_transfer(module, samples, dataloader_idx=dataloader_idx)
    return module._apply_batch_transfer_handler(samples, device=device, dataloader_idx=dataloader_idx)


def note_batch_size(trainer: Trainer, num_samples: int | None) -> None:
    """Sets the number of samples for ``self.log`` in hooks of a batch. Lightning would search the
    batch for it."""
    results = trainer._results
    if results is not None:
        results.batch_size = num_samples


def noting_sampler(loader: Any) -> Any:
    """Returns the batch sampler from which Lightning reads the indices of predictions; None: the
    loader has none, or its order is random.

    The engine iterates a copy of it, so the original must be iterated as well. In a random order, a
    second iteration would yield other indices."""
    sampler = getattr(loader, "batch_sampler", None)
    in_order = type(getattr(loader, "sampler", None)) is SequentialSampler
    return sampler if isinstance(sampler, _IndexBatchSamplerWrapper) and in_order else None


def disable_signal_handlers(trainer: Trainer) -> None:
    """Keeps Lightning from registering signal handlers, which would end the run without saving
    it."""
    vars(trainer._signal_connector)["register_signal_handlers"] = lambda: None


# Steps


def epoch_batch_idx(trainer: Trainer) -> int:
    """Returns the number of the current batch in its epoch, from 0."""
    return int(trainer.fit_loop.batch_idx)


def take_gradients(module: LightningModule) -> list[tuple[Tensor, Tensor | None]]:
    """Removes the gradients from the parameters and returns them."""
    taken: list[tuple[Tensor, Tensor | None]] = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, _ in taken:
        parameter.grad = None
    return taken


def put_gradients(taken: list[tuple[Tensor, Tensor | None]]) -> None:
    """Puts back the gradients that ``take_gradients`` returned."""
    for parameter, gradient in taken:
        parameter.grad = gradient


# The position


def num_epochs(trainer: Trainer) -> int:
    """Returns the number of epochs until ``max_epochs`` or ``max_steps`` is reached, whichever is
    first. It is known once the training has started.

    Raises:
        UsageError: neither is set.
    """
    loop = trainer.fit_loop
    most = loop.max_epochs
    if trainer.max_steps == -1:
        if most is None or most < 0:
            raise UsageError(
                "Trainer(max_epochs=-1) without max_steps is not supported: a resumable run needs an end. Set max_epochs or "
                "max_steps; to stop earlier, use EarlyStopping or trainer.should_stop.",
                code="endless-training",
            )
        return int(most)
    enough, steps = trainer.current_epoch, trainer.global_step
    while steps < trainer.max_steps:
        # Rounded up: Lightning also steps after the last batch of an epoch.
        steps += max(1, -(-int(loop.max_batches) // _accumulated(trainer, enough)))
        enough += 1
    return enough if most is None or most < 0 else min(enough, int(most))


def _accumulated(trainer: Trainer, epoch: int) -> int:
    """Returns the number of batches per step in an epoch."""
    for callback in callbacks(trainer):
        if isinstance(callback, GradientAccumulationScheduler):
            return callback.get_accumulate_grad_batches(epoch)
    return trainer.accumulate_grad_batches


def loop_state(trainer: Trainer) -> dict[str, Any]:
    """Returns the counts of Lightning's loops, the logged values that are not averaged yet, and the
    newest averages."""
    loop, connector = trainer.fit_loop, trainer._logger_connector
    epochs = loop.epoch_loop
    return {
        "counts": copy.deepcopy(loop.state_dict()),
        "seen": dict(epochs.val_loop._seen_batches_per_dataloader),
        "should_stop": trainer.should_stop,
        "results": [_of_result(key, metric) for key, metric in epochs._results.items()],
        "newest": [
            dict(connector._callback_metrics),
            dict(connector._logged_metrics),
            dict(connector._progress_bar_metrics),
        ],
        "hook": [connector._first_loop_iter, connector._current_fx],
    }


def load_loop_state(trainer: Trainer, state: dict[str, Any]) -> None:
    """Restores the result of ``loop_state``. Call it in ``on_train_start`` of the strategy, before
    ``resume``."""
    loop, connector = trainer.fit_loop, trainer._logger_connector
    epochs = loop.epoch_loop
    loop.load_state_dict(copy.deepcopy(state["counts"]))
    for each in (loop, epochs, epochs.val_loop, epochs.automatic_optimization, epochs.manual_optimization):
        # With these flags, Lightning would correct the counts, as it must for its own checkpoints.
        # lockstep's counts are exact.
        each._restarting = each._loaded_from_state_dict = each._resuming_from_checkpoint = False
    epochs.val_loop._seen_batches_per_dataloader.update(state["seen"])
    trainer.should_stop = state["should_stop"]
    epochs._results.clear()
    for one in state["results"]:
        epochs._results[one["key"]] = _to_result(trainer, one)
    newest: tuple[dict[str, Any], ...] = (
        connector._callback_metrics,
        connector._logged_metrics,
        connector._progress_bar_metrics,
    )
    for kept, values in zip(newest, state["newest"], strict=True):
        kept.clear()
        kept.update(values)
    connector._first_loop_iter, connector._current_fx = state["hook"]


def resume(trainer: Trainer, *, within: bool) -> None:
    """Makes the loops continue where the restored state was saved: inside an epoch between two
    batches, or between epochs."""
    loop = trainer.fit_loop
    progress: Any = loop.epoch_progress
    if not within:
        for counts in (progress.current, progress.total):
            counts.ready = counts.started = counts.processed = counts.completed
        return
    loop._restart_stage = fit_loop.RestartStage.RESTARTED_MID_EPOCH
    epochs: Any = loop.epoch_loop

    def reset() -> None:
        # Skips one call, which would set the restored counts of this epoch to zero.
        del epochs.reset

    epochs.reset = reset


def skip(trainer: Trainer, num_epochs: int) -> None:
    """Makes the loops see a finished training."""
    loop = trainer.fit_loop
    progress: Any = loop.epoch_progress.current
    progress.ready = progress.started = progress.processed = progress.completed = num_epochs
    if trainer.max_steps != -1:
        loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = trainer.max_steps


def _of_result(key: str, metric: Any) -> dict[str, Any]:
    meta = metric.meta
    names = [name for name in vars(meta) if name not in ("_sync", "reduce_fx")]
    return {
        "key": key,
        "meta": {name: getattr(meta, name) for name in names} | {"reduce_fx": meta.reduce_fx.__name__},
        "only_main": meta.sync.rank_zero_only,
        "is_tensor": metric.is_tensor,
        "values": {
            name: vars(metric)[name]
            for name in _KEPT_OF_RESULT
            if name in vars(metric) and (metric.is_tensor or name != "value")
        },
    }


def _to_result(trainer: Trainer, one: dict[str, Any]) -> Any:
    meta = result._Metadata(**one["meta"])
    meta.sync = result._Sync(_should=False, fn=trainer.strategy.reduce, _group=None, rank_zero_only=one["only_main"])
    metric = result._ResultMetric(meta, one["is_tensor"])
    vars(metric).update(one["values"])
    if not one["is_tensor"]:
        metric.value = trainer.lightning_module.get_submodule(str(meta.metric_attribute))
    return metric.to(trainer.strategy.root_device)


# The trainer


def explicit_devices(trainer: Trainer) -> int:
    """Returns the number of devices of ``Trainer(devices=...)``. On a machine with several GPUs,
    ``auto`` means all."""
    flag = trainer._accelerator_connector._devices_flag
    return len(flag) if isinstance(flag, list) else int(flag)


def explicit_nodes(trainer: Trainer) -> int:
    """Returns the number of machines of ``Trainer(num_nodes=...)``."""
    return int(trainer._accelerator_connector._num_nodes_flag)


def device_type(trainer: Trainer) -> str:
    """Returns the device type of Lightning's accelerator."""
    name = type(trainer.strategy.accelerator).__name__
    return {"CPUAccelerator": "cpu", "CUDAAccelerator": "cuda"}.get(name, name)


def is_about_several_optimizers(error: RuntimeError) -> bool:
    """Returns whether Lightning raised the error because automatic optimization supports one
    optimizer. It advises manual optimization."""
    check = getattr(optimizer, "_validate_multiple_optimizers_support", None)
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return check is not None and place is not None and place.tb_frame.f_code is check.__code__


def callback_state(callback: Callback) -> dict[str, Any]:
    """Returns the state of a callback. For ModelCheckpoint, it includes attributes that its
    ``state_dict`` lacks, since it sets them when it writes its next file."""
    state = copy.deepcopy(callback.state_dict())
    if isinstance(callback, ModelCheckpoint):
        kept = vars(callback)
        state["lockstep"] = {name: copy.deepcopy(kept[name]) for name in _KEPT_OF_CHECKPOINT if name in kept}
    return state


def load_callback_state(callback: Callback, state: dict[str, Any]) -> None:
    """Restores the result of ``callback_state``."""
    state = copy.deepcopy(state)
    own = state.pop("lockstep", {})
    if isinstance(callback, ModelCheckpoint) and state.get("dirpath"):
        # The directory of the first launch: a logger may have numbered another one in this launch,
        # and ModelCheckpoint then ignores the restored list of best files.
        callback.dirpath = state["dirpath"]
    if state:
        callback.load_state_dict(state)
    vars(callback).update(own)


def callbacks(trainer: Trainer) -> list[Callback]:
    """Returns the trainer's list of callbacks, which may be changed."""
    found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return found


def data_module(trainer: Trainer) -> LightningDataModule | None:
    """Returns the trainer's data module; None: it has none."""
    return getattr(trainer, "datamodule", None)
