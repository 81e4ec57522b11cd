"""The host's loop over evaluation batches: each is computed by one process, and its results are on
all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from transformers.trainer_pt_utils import find_batch_size

from lockstep._base.errors import ConfigError


class Inputs(dict[str, Any]):
    """An evaluation batch in the host's loop: empty but for what metrics ask for.

    Args:
        batch: the run's, whose samples one process has.
    """

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch = batch


class Dealt(DataLoaderStateMixin):
    """An evaluation loader in the host's loop. It can be iterated several times.

    ``len()`` is the number of batches. Other attributes are those of the loader.

    Args:
        team: the run.
        model: as the run has prepared it.
        loader: the host's.
    """

    def __init__(self, team: Any, model: Any, loader: Any) -> None:
        self.gradient_state = GradientState()
        self.wrapped = loader
        self._team = team
        self._model = model

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __iter__(self) -> Iterator[Inputs]:
        try:
            length = len(self)
        except TypeError:
            length = None
        self.reset()
        self.gradient_state._add_dataloader(self)
        try:
            with self._team.evaluate(self._model, self.wrapped, share=True) as evaluation:
                for number, batch in enumerate(evaluation, 1):
                    self.end_of_dataloader = number == length
                    yield Inputs(batch)
        finally:
            self.gradient_state._remove_dataloader(self)


class Predictions:
    """The steps of one evaluation. Takes the place of ``prediction_step``, whose results it shares.

    Args:
        trainer: a ``HostTrainer``.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._preprocess: Callable[..., Any] | None = trainer.preprocess_logits_for_metrics
        self._shares_inputs = "inputs" in trainer.args.include_for_metrics
        self.num_samples = 0
        """Those of all batches."""

    def check(self, loader: Any) -> None:
        """Refuse what needs to know the last batch where that is unknown.

        Raises:
            ConfigError: it does.
        """
        if self._trainer.args.batch_eval_metrics:
            try:
                len(loader)
            except TypeError:
                raise ConfigError(
                    "batch_eval_metrics=True with an evaluation set that has no len(): compute_metrics is told which batch is "
                    "the last one, which is not known here. Give the set a length, or leave batch_eval_metrics out."
                ) from None

    def step(self, model: Any, inputs: Inputs, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        """``prediction_step`` of a batch, on every rank: loss, logits and labels."""
        trainer, batch = self._trainer, inputs.batch
        for samples in batch.shards:
            with trainer.team.autocast():
                step = type(trainer).prediction_step
                loss, logits, labels = step(trainer, model, samples, prediction_loss_only, ignore_keys=ignore_keys)
            if self._preprocess is not None and logits is not None:
                logits = self._preprocess(logits, labels)
            asked_for = dict(samples) if self._shares_inputs else {}
            collected = trainer.collect() if trainer.collects else None
            # (the first tensor of the samples may count patches, or tokens)
            _, num_samples = batch.running
            num_samples = find_batch_size(samples) if num_samples is None else num_samples
            batch.share((loss, logits, labels, num_samples, asked_for, collected))
        ((loss, logits, labels, num_samples, asked_for, collected),) = batch.shared()
        if trainer.collects:
            trainer.take([collected])
        inputs.update(asked_for)
        self.num_samples += num_samples or 0
        is_mean = loss is not None and loss.numel() == 1 and num_samples is not None
        trainer.accelerator.losses = loss.reshape(1).repeat(num_samples) if is_mean else None
        return loss, logits, labels
