"""What of Lightning has no meaning here, refused before the training starts."""

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

LOOP = "Write lockstep's own loop for it: docs/loop.md, and docs/how-to/gans.md for several optimizers."
_SETTINGS = {
    "accumulate": "Give Trainer(accumulate_grad_batches=...): Lightning counts the batches of a step itself.",
    "precision": "Give Trainer(precision=...): Lightning converts the module and its inputs.",
    "find_unused_parameters": "It is not needed: parameters may be unused in any step.",
}
_STRATEGIES = ("auto", "exact", "single")
_CALLBACKS: dict[type[Callback], str] = {
    StochasticWeightAveraging: "it trains an epoch without an optimizer, and replaces schedules that lockstep saves",
    WeightAveraging: "its averaged weights are in no checkpoint of lockstep, so a resumed run would lose them",
    BaseFinetuning: "it gives the optimizer more parameters during the training, which a resumed run would not have",
    ModelPruning: "it replaces parameters by others, which lockstep has not prepared",
    LearningRateFinder: "it trains, and then goes back, which would be steps of the run",
    BatchSizeFinder: "it trains, and then goes back, which would be steps of the run",
}


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse settings of ``join`` that are Lightning's.

    Raises:
        ConfigError: one of them is given.
    """
    for name, remedy in _SETTINGS.items():
        if name in settings:
            raise ConfigError(f"LockstepStrategy({name}={settings[name]!r}): {remedy}")
    strategy = settings.get("strategy", "auto")
    if strategy not in _STRATEGIES:
        raise ConfigError(
            f"LockstepStrategy(strategy={strategy!r}): beneath Lightning, gradients are combined by "
            f"{', '.join(_STRATEGIES)} only. "
            f"{LOOP}"
        )


def check_trainer(trainer: Trainer, team: Team) -> None:
    """Refuse settings and callbacks of the trainer.

    Raises:
        UsageError: one is given that has no meaning here.
        ConfigError: Lightning and lockstep are to use different devices, or the precision is not
            supported.
    """
    num_nodes = host.explicit_nodes(trainer)
    if num_nodes > 1 or (team.device.type == "cpu" and host.explicit_devices(trainer) > 1):
        raise UsageError(
            f"Trainer(num_nodes={num_nodes}, devices={host.explicit_devices(trainer)}): lockstep's launcher "
            "decides how "
            "many processes train, on which machines: `lockstep run --nproc-per-node 4 train.py`. Leave both "
            "arguments out. The "
            "number of shards, LockstepStrategy(shards=...), decides how a batch is split."
        )
    expected = host.device_type(trainer)
    if expected != team.device.type:
        raise ConfigError(
            f"Trainer(accelerator=...) chooses {expected}, and lockstep has chosen {team.device}: give LockstepStrategy("
            f"device={expected!r}), or Trainer(accelerator={team.device.type!r})."
        )
    if every := getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
        raise UsageError(
            f"Trainer(reload_dataloaders_every_n_epochs={every}): a run has one training "
            "loader, whose position is in its checkpoints. Let the data set depend on the epoch, by a method set_epoch(epoch)."
        )
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        raise UsageError(
            "Trainer(val_check_interval=<a duration>): validation at times of the clock comes at other steps in each "
            "run. Give a "
            "number of batches, or a fraction of an epoch."
        )
    _check_precision(trainer.precision_plugin)
    for callback in host.callbacks(trainer):
        for kind, reason in _CALLBACKS.items():
            if isinstance(callback, kind):
                raise UsageError(
                    f"the callback {type(callback).__name__} does not work with LockstepStrategy: {reason}. Leave it "
                    "out. For averaged "
                    "weights, lockstep's own loop has team.prepare(AveragedModel(model)): docs/loop.md."
                )
    if trainer.state.fn == TrainerFn.FITTING and trainer.ckpt_path is not None:
        raise UsageError(
            f"trainer.fit(ckpt_path={str(trainer.ckpt_path)!r}): a run resumes by itself, when the same command is "
            "repeated, from "
            "lockstep's checkpoints, which also hold the position in the data. To begin a new run with the weights of a file: "
            f"{type(trainer.lightning_module).__name__}.load_from_checkpoint(path) before trainer.fit."
        )


def _check_precision(plugin: Precision) -> None:
    kept = type(plugin) in (Precision, DoublePrecision)
    kept = kept or (isinstance(plugin, MixedPrecision | HalfPrecision) and str(plugin.precision).startswith("bf16"))
    if not kept:
        raise ConfigError(
            f"precision {plugin.precision!r} ({type(plugin).__name__}) does not work with LockstepStrategy. Give "
            "Trainer(precision=...) "
            "'32-true', 'bf16-mixed', 'bf16-true' or '64-true'. For float16 with a loss scaler, see docs/precision.md."
        )


def check_module(trainer: Trainer, module: LightningModule) -> None:
    """Refuse modules that control the backward pass and the optimizers themselves.

    Raises:
        UsageError: the module does.
    """
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UsageError(
            f"{name}.automatic_optimization is False: with manual optimization, training_step itself calls backward and "
            "optimizer.step(). But it runs once per shard here, and an optimizer steps once per global batch, after "
            "gradients of "
            f"all shards are combined. {LOOP}"
        )
    if len(trainer.strategy.optimizers) != 1 or not trainer.strategy.optimizers[0].param_groups:
        raise UsageError(
            f"{name}.configure_optimizers returns {len(trainer.strategy.optimizers)} optimizers, and "
            "LockstepStrategy trains with "
            f"one. {LOOP}"
        )
    if is_overridden("backward", module):
        raise UsageError(
            f"{name} overrides backward(): the backward pass is lockstep's here, for each shard. Change gradients in "
            f"on_after_backward, where those of the whole batch are in .grad. {LOOP}"
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise UsageError(
            f"{name}.training_step(dataloader_iter) takes batches from the loader itself. It runs once per shard "
            "here, so write "
            "training_step(batch, batch_idx). lockstep fetches batches ahead."
        )


def check_length(loader: Any, limit: Any, argument: str) -> None:
    """Refuse a loader of unknown length: Lightning takes a batch ahead of it, to know the last one.

    Raises:
        UsageError: the loader has no length, and no limit is given.
    """
    try:
        len(loader)
    except TypeError:
        if not isinstance(limit, int):
            raise UsageError(
                f"a loader of unknown length ({type(getattr(loader, 'dataset', loader)).__name__}): Lightning would "
                "take each batch "
                f"before the one before it is done, to know which is the last. Give Trainer({argument}=N), the "
                "number of batches."
            ) from None
