"""Where Lightning's loops are, told to the engine: when epochs, passes and evaluations begin and
end, and what resumes."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lockstep._base.errors import UsageError
from lockstep.integrations.lightning import _host as host
from lockstep.integrations.lightning._joined import Joined
from lockstep.integrations.lightning._loaders import Evaluations, HostBatch, TrainLoader
from lockstep.integrations.lightning._state import RunState


class Epochs:
    """The epochs of ``trainer.fit``.

    Args:
        joined: the run.
        evaluations: ended when a loop over evaluation batches is over.
    """

    def __init__(self, joined: Joined, evaluations: Evaluations) -> None:
        self._joined = joined
        self._turns = _Turns(self, evaluations)
        self._trainer: Trainer | None = None
        self._loader: TrainLoader | None = None
        self._hosted: Any = None
        self._state: RunState | None = None
        self._start = 0

    def attach(self, trainer: Trainer) -> None:
        """Follow a trainer, before all other callbacks. Every rank must call it, before each of its
        loops."""
        self._trainer = trainer
        self._loader = None
        callbacks = host.callbacks(trainer)
        if self._turns not in callbacks:
            callbacks.insert(0, self._turns)

    def set_loader(self, loader: TrainLoader) -> TrainLoader:
        """Take the training loader.

        Raises:
            UsageError: there is one already.
        """
        if self._loader is not None:
            raise UsageError(
                "trainer.fit was given several training loaders: LockstepStrategy trains on one. Zip data sets into "
                "one, or write "
                "lockstep's own loop: docs/how-to/several-loaders.md."
            )
        self._loader = loader
        return loader

    def start(self) -> None:
        """Restore the run, if it resumes. Every rank must call it, after all hooks of the start and
        before the first epoch."""
        trainer = self._trainer
        assert trainer is not None
        team, joined = self._joined.team, self._joined
        joined.num_fits += 1
        name = "lightning" if joined.num_fits == 1 else f"lightning, fit {joined.num_fits}"
        self._state = state = RunState(trainer, lambda callback: callback is self._turns)
        team.register(name, state)
        team.register(f"{name}, callbacks", state.callbacks(), compare=False)
        self._start = trainer.current_epoch  # not 0 if the trainer goes on with a fit that is over
        self._hosted = team.hosted_epochs(host.num_epochs(trainer) - self._start)
        joined.is_behind = self._hosted.is_past
        if state.is_restored:
            host.resume(trainer, within=self._hosted.is_within)
        elif joined.is_behind:  # the run was interrupted in a later fit
            host.skip(trainer, self._start + self._hosted.num_epochs)
        if self._hosted.is_within:
            self._hosted.begin(self._hosted.first)

    def check_evaluation(self, trainer: Trainer) -> None:
        """Refuse to evaluate a module that is not as its training has left it.

        Raises:
            UsageError: the run resumes in a later fit, and no file of weights is given.
        """
        if self._joined.is_behind and trainer.ckpt_path is None:
            raise UsageError(
                "an evaluation after trainer.fit number "
                f"{self._joined.num_fits}, which an earlier launch has completed: the run resumes in a later fit, whose "
                "checkpoint does not restore the weights that this one has come to, so the result would be of others. For "
                "cross-validation, start a run for each fold (--run-dir), or evaluate by a file: trainer.validate(model, "
                "ckpt_path=...). Or start this run from its beginning: --fresh."
            )

    def begin(self, epoch: int) -> None:
        """An epoch begins."""
        if epoch - self._start >= self._hosted.num_epochs:
            raise UsageError(
                f"epoch {epoch} begins, and by Trainer(max_epochs=..., max_steps=...) the training was to have "
                f"{self._hosted.num_epochs} epochs when it began: accumulate_grad_batches or a limit has been changed in a "
                "hook, or steps were left out. Change accumulate_grad_batches by GradientAccumulationScheduler, or give "
                "max_epochs alone."
            )
        self._hosted.begin(epoch - self._start)

    def finish_pass(self) -> None:
        """The last batch of an epoch is done: Lightning counts them, and does not ask for the
        end."""
        if self._loader is not None:
            self._loader.prepared.finish()

    def end(self) -> None:
        """The loop over epochs is over."""
        self.finish_pass()
        if self._state is not None:
            self._state.freeze()
        self._hosted.end()


class _Turns(Callback):
    """Called before all other callbacks."""

    def __init__(self, epochs: Epochs, evaluations: Evaluations) -> None:
        self._epochs = epochs
        self._evaluations = evaluations

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.begin(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.finish_pass()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        _note_size(trainer, batch)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        _note_size(trainer, batch)

    on_test_batch_start = on_validation_batch_start

    def _on_evaluation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluations.end()

    on_validation_epoch_end = on_test_epoch_end = on_predict_epoch_end = _on_evaluation_epoch_end


def _note_size(trainer: Trainer, batch: HostBatch) -> None:
    try:
        host.note_batch_size(trainer, batch.inner.num_samples)
    except UsageError:  # a ready-made batch of an evaluation: only its owner can count its samples
        host.note_batch_size(trainer, None)
