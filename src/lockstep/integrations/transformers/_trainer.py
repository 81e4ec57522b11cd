"""``Trainer`` and ``Seq2SeqTrainer`` on lockstep."""

from __future__ import annotations

import os
import warnings
from typing import Any, NoReturn

import transformers
from accelerate.utils.memory import should_reduce_batch_size
from transformers.trainer_utils import has_length
from typing_extensions import override

from lockstep._base.errors import ConfigError, UsageError
from lockstep.integrations.transformers._arguments import OnLockstep, TrainingArguments, creating_trainer
from lockstep.integrations.transformers._evaluation import EvaluationBatches, Predictions
from lockstep.integrations.transformers._host import Handler, HostTrainer, standing_in
from lockstep.integrations.transformers._refusals import check_collator, check_methods, check_model, check_resume
from lockstep.integrations.transformers._state import is_clock
from lockstep.integrations.transformers._training import Training


class Trainer(HostTrainer):
    """transformers' ``Trainer`` on lockstep: the same weights and logs on any number of processes,
    through kills and resumes.

    Every rank must create it and call its methods, in the same order. To run another trainer that
    derives from transformers' on lockstep, write ``class
    MyTrainer(lockstep.integrations.transformers.Trainer, TheirTrainer)``.

    Raises:
        ConfigError: the arguments are not lockstep's, or are not supported.
        UsageError: a subclass overrides a method that lockstep replaces.
    """

    def __init__(self, model: Any = None, args: Any = None, *more: Any, **named: Any) -> None:
        check_methods(type(self))
        if args is None:
            args = TrainingArguments("tmp_trainer")
        if not isinstance(args, OnLockstep):
            raise ConfigError(
                f"Trainer(args={type(args).__module__}.{type(args).__name__}(...)): only lockstep's arguments join a run; with "
                "others, each process would train alone. Import both: `from lockstep.integrations.transformers import "
                "Trainer, TrainingArguments`.",
                code="arguments-of-transformers",
            )
        check_model(model)
        with creating_trainer():
            if more:
                super().__init__(model, args, *more, **named)
            else:
                # By name, since another class among the bases may have a different second
                # parameter.
                super().__init__(model, args=args, **named)
        self.callback_handler: Any = Handler(vars(self)["callback_handler"], self)

    # Training

    @override
    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None, **kwargs: Any
    ) -> Any:
        """Trains. A run that was interrupted resumes without an argument. Every rank must call it.

        Args:
            resume_from_checkpoint: None, True and False have the same effect. A path of a
                checkpoint in ``output_dir`` is accepted if the run resumes; the run then resumes
                from its own, newer state.
            trial: must be None.
            ignore_keys_for_eval: passed to transformers.

        Raises:
            UsageError: a path was passed, but the run is new; or a trial was passed.
        """
        check_resume(resume_from_checkpoint)
        if trial is not None:
            self.hyperparameter_search()
        self._start = None if resume_from_checkpoint in (None, True, False) else os.fspath(resume_from_checkpoint)
        try:
            return super().train(None, None, ignore_keys_for_eval, **kwargs)
        finally:
            self.training = None

    @override
    def check_start(self, *, is_resumed: bool) -> None:
        if self._start is not None and not is_resumed:
            raise UsageError(
                f"train(resume_from_checkpoint={self._start!r}): this run is new, and Trainer's checkpoints lack the state of "
                f"data and random streams. lockstep resumes from its own checkpoints in {self.team.run_dir}. Remove the path; "
                "to start from its weights, use from_pretrained(path).",
                code="checkpoint-of-trainer",
            )

    @override
    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._inner_training_loop(*args, **kwargs)
        except RuntimeError as error:
            if self.args.auto_find_batch_size and should_reduce_batch_size(error):
                raise UsageError(
                    f"out of memory with batches of {self._train_batch_size} samples. auto_find_batch_size has no effect on "
                    "lockstep, since results would depend on the machine. Set a smaller per_device_train_batch_size and a "
                    "larger gradient_accumulation_steps.",
                    code="batch-size-search",
                ) from error
            raise

    @override
    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        check_collator(dataloader)
        self.training = Training(self, dataloader)
        with self.accumulating(1):
            return super().set_initial_training_values(args, self.training.loader)

    @override
    def get_total_train_batch_size(self, args: Any) -> int:
        size: int = self._train_batch_size * self.team.config.accumulate
        return size

    @override
    def num_examples(self, dataloader: Any) -> int:
        number: int = super().num_examples(getattr(dataloader, "wrapped", dataloader))
        return number

    @override
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs values, also to lockstep's event log. All values except times must be equal on every
        rank.

        Raises:
            UsageError: it was called for a single shard, in ``compute_loss`` or ``training_step``,
                or for an evaluation batch.
        """
        values = {
            name: value
            for name, value in logs.items()
            if isinstance(value, (int, float)) and not is_clock(name) and name != "epoch"
        }
        try:
            self.team.log(**values)
        except UsageError as error:
            error.add_note(
                "In a Trainer, return the value of a shard from collect(), and log it in take(collected), which receives the "
                "values of all shards: docs/how-to/trainer.md#what-runs-where."
            )
            raise
        super().log(logs, start_time)

    @override
    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises an error: trials must be separate runs.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "hyperparameter_search() trains many times in one process, but a run of lockstep is one training. Start each "
            "trial as a separate run, with its arguments on the command line.",
            code="hyperparameter-search",
        )

    @override
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model as transformers does. If the run resumes in a later training, it does
        nothing, since an earlier launch saved the model."""
        if self.is_past and self.training is None:
            self._warn_of_past("save_model()", "does nothing (the launch that trained this model saved it)")
            return
        super().save_model(output_dir, _internal_call)

    def _warn_of_past(self, call: str, consequence: str) -> None:
        if self.team.is_main:
            warnings.warn(
                f"lockstep: an earlier launch finished this training and the run resumes in a later one, so {call} "
                f"{consequence}. The weights of that moment are in no checkpoint. Write such results to a file, or start each "
                "training as a separate run.",
                RuntimeWarning,
                stacklevel=3,
            )

    # Evaluation

    @override
    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_past and self.training is None:
            self._warn_of_past("evaluate()", "uses other weights than the earlier launch: IGNORE its numbers")
        predictions = Predictions(self)
        predictions.check(dataloader)
        check_collator(dataloader)
        batches = EvaluationBatches(self.team, self.team.prepare(self.model), dataloader)
        before: Any = vars(self)["preprocess_logits_for_metrics"]
        # Predictions.step calls it, on the process that has the logits.
        self.preprocess_logits_for_metrics = None
        try:
            with standing_in(self, prediction_step=predictions.step):
                output = super().evaluation_loop(batches, *args, **kwargs)
        finally:
            self.preprocess_logits_for_metrics, self.accelerator.losses = before, None
            # Callbacks read batches with samples from it. Batches in Trainer's loop are empty.
            self.callback_handler.eval_dataloader = dataloader
        return output if has_length(batches.dataset) else output._replace(num_samples=predictions.num_samples)


class Seq2SeqTrainer(Trainer, transformers.Seq2SeqTrainer):
    """transformers' ``Seq2SeqTrainer`` on lockstep, with the rules of ``Trainer``."""
