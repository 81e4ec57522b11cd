"""Checks for parts of Lightning that lockstep does not support, before the training starts."""

from __future__ import annotations

import inspect
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.callbacks.weight_averaging import WeightAveraging
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep import Team
from lockstep._base.errors import ConfigError, UsageError
from lockstep.integrations.lightning import _host as host

LOOP = "Use lockstep's own loop (docs/loop.md; for several optimizers docs/how-to/gans.md)."
_SETTINGS = {
    "accumulate": "Lightning counts the batches of a step. Use Trainer(accumulate_grad_batches=...).",
    "precision": "Lightning converts the module and its inputs. Use Trainer(precision=...).",
    "find_unused_parameters": "parameters may be unused in any step. Remove the argument.",
}
_STRATEGIES = ("auto", "exact", "single")
_CALLBACKS: dict[type[Callback], str] = {
    StochasticWeightAveraging: "it trains an epoch without an optimizer, and replaces schedules that lockstep saves",
    WeightAveraging: "lockstep's checkpoints do not contain its averaged weights, so a resumed run would lose them",
    BaseFinetuning: "it adds parameters to the optimizer during the training, which a resumed run would lack",
    ModelPruning: "it replaces parameters, and lockstep has not prepared the new ones",
    LearningRateFinder: "its trial steps would be counted as steps of the run",
    BatchSizeFinder: "its trial steps would be counted as steps of the run",
}


def check_settings(settings: dict[str, Any]) -> None:
    """Checks that no setting of ``join`` is one that Lightning determines.

    Raises:
        ConfigError: there is such a setting, or the strategy is not supported.
    """
    for name, remedy in _SETTINGS.items():
        if name in settings:
            raise ConfigError(f"LockstepStrategy({name}={settings[name]!r}): {remedy}", code="setting-of-lightning")
    strategy = settings.get("strategy", "auto")
    if strategy not in _STRATEGIES:
        raise ConfigError(
            f"LockstepStrategy(strategy={strategy!r}) is not supported. Use one of {', '.join(_STRATEGIES)}. {LOOP}",
            code="strategy-below-lightning",
        )


def check_trainer(trainer: Trainer, team: Team) -> None:
    """Checks that lockstep supports the settings and callbacks of the trainer.

    Raises:
        UsageError: a setting or callback is not supported.
        ConfigError: Lightning and lockstep use different devices, or the precision is not
            supported.
    """
    num_nodes = host.explicit_nodes(trainer)
    if num_nodes > 1 or (team.device.type == "cpu" and host.explicit_devices(trainer) > 1):
        raise UsageError(
            f"Trainer(num_nodes={num_nodes}, devices={host.explicit_devices(trainer)}): the launcher determines the number of "
            "processes and machines. Remove both arguments and run `lockstep run --nproc-per-node 4 train.py`.",
            code="devices-of-trainer",
        )
    expected = host.device_type(trainer)
    if expected != team.device.type:
        raise ConfigError(
            f"Trainer(accelerator=...) uses {expected}, but lockstep uses {team.device}. Set LockstepStrategy("
            f"device={expected!r}) or Trainer(accelerator={team.device.type!r}).",
            code="different-devices",
        )
    if every := getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
        raise UsageError(
            f"Trainer(reload_dataloaders_every_n_epochs={every}) is not supported: checkpoints contain the position of one "
            "training loader. To change data between epochs, define set_epoch(epoch) in the dataset.",
            code="reloaded-loaders",
        )
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        raise UsageError(
            "Trainer(val_check_interval=<a duration>) is not supported: validation would run at different steps in each run. "
            "Set a number of batches, or a fraction of an epoch.",
            code="validation-by-time",
        )
    _check_precision(trainer.precision_plugin)
    for callback in host.callbacks(trainer):
        for kind, reason in _CALLBACKS.items():
            if isinstance(callback, kind):
                raise UsageError(
                    f"LockstepStrategy does not support the callback {type(callback).__name__}: {reason}. Remove it. For "
                    "averaged weights, use lockstep's own loop with team.prepare(AveragedModel(model)): docs/loop.md.",
                    code="callback-not-supported",
                )
    if trainer.state.fn == TrainerFn.FITTING and trainer.ckpt_path is not None:
        raise UsageError(
            f"trainer.fit(ckpt_path={str(trainer.ckpt_path)!r}) is not supported: lockstep resumes from its own checkpoints "
            "when you repeat the command. To start a new run with the weights of a file, call "
            f"{type(trainer.lightning_module).__name__}.load_from_checkpoint(path) before trainer.fit.",
            code="checkpoint-of-lightning",
        )


def _check_precision(plugin: Precision) -> None:
    kept = type(plugin) in (Precision, DoublePrecision)
    kept = kept or (isinstance(plugin, MixedPrecision | HalfPrecision) and str(plugin.precision).startswith("bf16"))
    if not kept:
        raise ConfigError(
            f"LockstepStrategy does not support precision {plugin.precision!r} ({type(plugin).__name__}). Set "
            "Trainer(precision=...) to '32-true', 'bf16-mixed', 'bf16-true' or '64-true'. For float16 with a loss scaler, see "
            "docs/precision.md.",
            code="precision-of-trainer",
        )


def check_module(trainer: Trainer, module: LightningModule) -> None:
    """Checks that the module lets Lightning control the backward pass and one optimizer.

    Raises:
        UsageError: the module controls them itself.
    """
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UsageError(
            f"{name}.automatic_optimization=False is not supported: training_step runs once per shard, but the optimizer must "
            f"step once per global batch. {LOOP}",
            code="manual-optimization",
        )
    if len(trainer.strategy.optimizers) != 1 or not trainer.strategy.optimizers[0].param_groups:
        raise UsageError(
            f"{name}.configure_optimizers returned {sum(bool(each.param_groups) for each in trainer.strategy.optimizers)} "
            f"optimizers with parameters, but LockstepStrategy needs exactly one. {LOOP}",
            code="number-of-optimizers",
        )
    if is_overridden("backward", module):
        raise UsageError(
            f"{name} overrides backward(), which lockstep does not call: it runs the backward pass of each shard. Change "
            f"gradients in on_after_backward, where .grad is the gradient of the global batch. {LOOP}",
            code="backward-overridden",
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise UsageError(
            f"{name}.training_step(dataloader_iter) is not supported: the step runs once per shard. Write "
            "training_step(batch, batch_idx); lockstep already prefetches batches.",
            code="step-with-iterator",
        )


def check_length(loader: Any, limit: Any, argument: str) -> None:
    """Checks that the number of batches is known. Otherwise, Lightning fetches one batch ahead to
    recognize the last one, and the engine would see the next step too early.

    Raises:
        UsageError: the loader has no length, and no limit is set.
    """
    try:
        len(loader)
    except TypeError:
        if not isinstance(limit, int):
            raise UsageError(
                f"a loader without length ({type(getattr(loader, 'dataset', loader)).__name__}) is not supported, because "
                f"Lightning would fetch each batch too early. Set Trainer({argument}=N), the number of batches.",
                code="loader-without-length",
            ) from None
