"""Trainer's loop over evaluation batches. One process computes each batch, and all processes get
its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from transformers.trainer_pt_utils import find_batch_size

from lockstep._base.errors import ConfigError
from lockstep.integrations.transformers._shard_attributes import ShardAttributes


class Inputs(dict[str, Any]):
    """An evaluation batch in Trainer's loop: empty, except for the inputs that metrics need.

    Args:
        batch: lockstep's batch, whose samples are on one process.
    """

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch = batch


class EvaluationBatches(DataLoaderStateMixin):
    """An evaluation loader in Trainer's loop. It can be iterated several times.

    ``len()`` is the number of batches. Other attributes are forwarded to Trainer's loader. By
    ``end_of_dataloader`` of the base class, accelerate recognizes the last batch.

    Args:
        team: the team of this process.
        model: the prepared model.
        loader: Trainer's loader.
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
    """The steps of one evaluation. ``step`` replaces ``prediction_step`` and shares its results.

    Args:
        trainer: the ``HostTrainer``.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._attributes = ShardAttributes(trainer)
        self._preprocess: Callable[..., Any] | None = trainer.preprocess_logits_for_metrics
        self._shares_inputs = "inputs" in trainer.args.include_for_metrics
        self.num_samples = 0
        """The number of samples of all batches so far."""

    def check(self, loader: Any) -> None:
        """Checks that the last batch can be recognized if metrics need it.

        Raises:
            ConfigError: metrics are computed per batch, and the loader has no length.
        """
        if self._trainer.args.batch_eval_metrics:
            try:
                len(loader)
            except TypeError:
                raise ConfigError(
                    "batch_eval_metrics=True needs an evaluation dataset with a length, because compute_metrics must know "
                    "which batch is the last. Define __len__ in the dataset, or remove batch_eval_metrics.",
                    code="batch-metrics-without-length",
                ) from None

    def step(self, model: Any, inputs: Inputs, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        """Runs ``prediction_step`` on the rank of the batch. Returns its loss, logits and labels on
        every rank."""
        trainer, batch = self._trainer, inputs.batch
        for samples in batch.shards:
            with self._attributes.unchanged("prediction_step"):
                with trainer.team.autocast():
                    step = type(trainer).prediction_step
                    loss, logits, labels = step(trainer, model, samples, prediction_loss_only, ignore_keys=ignore_keys)
                if self._preprocess is not None and logits is not None:
                    logits = self._preprocess(logits, labels)
                collected = trainer.collect()
            asked_for = dict(samples) if self._shares_inputs else {}
            # The batch knows its number of samples. transformers guesses it from the first tensor,
            # whose rows may be patches or tokens.
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
