"""The position of Lightning's loops, which the engine follows: the begin and end of epochs, passes
and evaluations, and the point at which a run resumes."""

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
        joined: the run that this process joined.
        evaluations: the evaluations, which end with a loop over evaluation batches.
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
        """Follows a trainer, before all other callbacks. Every rank must call it before each of the
        trainer's loops."""
        self._trainer = trainer
        self._loader = None
        callbacks = host.callbacks(trainer)
        if self._turns not in callbacks:
            callbacks.insert(0, self._turns)

    def set_loader(self, loader: TrainLoader) -> TrainLoader:
        """Sets the training loader.

        Raises:
            UsageError: there already is a training loader.
        """
        if self._loader is not None:
            raise UsageError(
                "trainer.fit got several training loaders, but LockstepStrategy supports one. Zip the datasets into one, or "
                "use lockstep's own loop: docs/how-to/several-loaders.md.",
                code="several-loaders",
            )
        self._loader = loader
        return loader

    def start(self) -> None:
        """Restores the run, if it resumes. Every rank must call it, after all ``on_train_start``
        hooks and before the first epoch."""
        trainer = self._trainer
        assert trainer is not None
        team, joined = self._joined.team, self._joined
        joined.num_fits += 1
        name = "lightning" if joined.num_fits == 1 else f"lightning, fit {joined.num_fits}"
        self._state = state = RunState(trainer, lambda callback: callback is self._turns)
        team.register(name, state)
        team.register(f"{name}, callbacks", state.callbacks(), compare=False)
        self._start = trainer.current_epoch  # Not 0 after an earlier fit of the same trainer.
        self._hosted = team.hosted_epochs(host.num_epochs(trainer) - self._start)
        joined.is_behind = self._hosted.is_past
        if state.is_restored:
            host.resume(trainer, within=self._hosted.is_within)
        elif joined.is_behind:
            # An earlier launch completed this fit and was interrupted in a later one.
            host.skip(trainer, self._start + self._hosted.num_epochs)
        if self._hosted.is_within:
            self._hosted.begin(self._hosted.first)

    def check_evaluation(self, trainer: Trainer) -> None:
        """Checks that the module has the weights of its training.

        Raises:
            UsageError: the run resumes in a later fit, and no file of weights was passed.
        """
        if self._joined.is_behind and trainer.ckpt_path is None:
            raise UsageError(
                f"cannot evaluate after fit number {self._joined.num_fits}: an earlier launch completed this fit, and the run "
                "resumes in a later one, so the weights of this fit are not available. Start one run per fold (--run-dir), or "
                "pass a file: trainer.validate(model, ckpt_path=...).",
                code="evaluation-of-earlier-fit",
            )

    def begin(self, epoch: int) -> None:
        """Begins an epoch."""
        if epoch - self._start >= self._hosted.num_epochs:
            raise UsageError(
                f"epoch {epoch} begins, but the training had {self._hosted.num_epochs} epochs when it started: a hook changed "
                "accumulate_grad_batches or a limit, or steps were skipped. Use GradientAccumulationScheduler, or set "
                "max_epochs without max_steps.",
                code="more-epochs-than-planned",
            )
        self._hosted.begin(epoch - self._start)

    def finish_pass(self) -> None:
        """Ends the pass after the last batch of an epoch."""
        # Lightning counts batches, and so never asks the loader for the end.
        if self._loader is not None:
            self._loader.prepared.finish()

    def end(self) -> None:
        """Ends the loop over epochs."""
        self.finish_pass()
        if self._state is not None:
            self._state.freeze()
        self._hosted.end()


class _Turns(Callback):
    """A callback that runs before all others, and follows epochs, batches and evaluations."""

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
    except UsageError:
        # A batch that the loader yields ready-made: only the process that has it knows its size.
        host.note_batch_size(trainer, None)
