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
from lockstep.integrations.transformers._arguments import OnLockstep, TrainingArguments
from lockstep.integrations.transformers._evaluation import Dealt, Predictions
from lockstep.integrations.transformers._host import Handler, HostTrainer, standing_in
from lockstep.integrations.transformers._refusals import check_collator, check_methods, check_model, check_resume
from lockstep.integrations.transformers._state import is_clock
from lockstep.integrations.transformers._training import Training


class Trainer(HostTrainer):
    """transformers' ``Trainer`` on lockstep: the same weights and logs on any number of processes,
    through kills and resumes.

    Every rank must make it and call its methods, in the same order. Other trainers that derive from
    transformers' come to lockstep by ``class MyTrainer(lockstep.integrations.transformers.Trainer,
    TheirTrainer)``.

    Raises:
        ConfigError: the arguments are not lockstep's, or cannot be honoured.
        UsageError: a subclass overrides what is replaced here.
    """

    def __init__(self, model: Any = None, args: Any = None, *more: Any, **named: Any) -> None:
        check_methods(type(self))
        if args is None:
            args = TrainingArguments("tmp_trainer")
        if not isinstance(args, OnLockstep):
            raise ConfigError(
                f"Trainer(args={type(args).__module__}.{type(args).__name__}(...)): only lockstep's arguments join a run, and "
                "with others each process would train alone. Import them, too: `from lockstep.integrations.transformers import "
                "Trainer, TrainingArguments`."
            )
        check_model(model)
        if more:
            super().__init__(model, args, *more, **named)
        else:  # of a class between, the second parameter may be another
            super().__init__(model, args=args, **named)
        self.callback_handler: Any = Handler(vars(self)["callback_handler"], self)

    # Training

    @override
    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None, **kwargs: Any
    ) -> Any:
        """Train, or go on with a training that was interrupted: the run resumes by itself. Every
        rank must call it.

        Args:
            resume_from_checkpoint: None, True and False mean the same. A path of a checkpoint in
                ``output_dir`` is accepted where the run resumes, which it then does from its own,
                newer state.
            trial: must be None.
            ignore_keys_for_eval: as for transformers.

        Raises:
            UsageError: a path is given and the run does not resume; or a trial.
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
                f"train(resume_from_checkpoint={self._start!r}): this run is new, and a checkpoint of Trainer lacks what an "
                "equal result needs (the state of each random stream and of the data). A run of lockstep resumes by itself, "
                f"from its own checkpoints in {self.team.run_dir}: leave the path out, or remove the checkpoint if the script "
                "looks for one. To begin with its weights, load them: from_pretrained(path)."
            )

    @override
    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._inner_training_loop(*args, **kwargs)
        except RuntimeError as error:
            if self.args.auto_find_batch_size and should_reduce_batch_size(error):
                raise UsageError(
                    f"batches of {self._train_batch_size} samples need more memory than there is, and auto_find_batch_size "
                    "does not reduce them on lockstep, since results would depend on the machine. Set a smaller "
                    "per_device_train_batch_size and a larger gradient_accumulation_steps."
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
        """Log values, which must be equal on every rank but for clocks. They are in lockstep's
        journal, too.

        Raises:
            UsageError: called for a single shard, in ``compute_loss`` or ``training_step``, or for
                an evaluation batch.
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
                "In a Trainer: return the value of a shard from collect(), and log it in take(collected), which has those of "
                "all shards: docs/how-to/trainer.md#what-runs-where."
            )
            raise
        super().log(logs, start_time)

    @override
    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "hyperparameter_search() trains many times in one process, and a run of lockstep is one training, which resumes. "
            "Start each trial as a run of its own, with its arguments on the command line."
        )

    @override
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers'. In a run that resumes in a later training, an earlier launch has done
        it."""
        if self.is_past and self.training is None:
            self._warn_of_past("save_model()", "does nothing: the launch that has trained them has saved them")
            return
        super().save_model(output_dir, _internal_call)

    def _warn_of_past(self, call: str, consequence: str) -> None:
        if self.team.is_main:
            warnings.warn(
                f"lockstep: the run resumes in a later training, so {call} behind this one, which an earlier launch has "
                f"finished, {consequence}. The weights of that moment are in no checkpoint. To have such results in a run that "
                "is interrupted, write them to a file, or start each training as a run of its own.",
                RuntimeWarning,
                stacklevel=3,
            )

    # Evaluation

    @override
    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_past and self.training is None:
            self._warn_of_past("an evaluation", "gives other numbers than it gave there: IGNORE them")
        predictions = Predictions(self)
        predictions.check(dataloader)
        check_collator(dataloader)
        dealt = Dealt(self.team, self.team.prepare(self.model), dataloader)
        before: Any = vars(self)["preprocess_logits_for_metrics"]
        self.preprocess_logits_for_metrics = None
        try:
            with standing_in(self, prediction_step=predictions.step):
                output = super().evaluation_loop(dealt, *args, **kwargs)
        finally:
            self.preprocess_logits_for_metrics, self.accelerator.losses = before, None
            self.callback_handler.eval_dataloader = (
                dataloader  # whose batches callbacks find whole, unlike in the host's loop
            )
        return output if has_length(dealt.dataset) else output._replace(num_samples=predictions.num_samples)


class Seq2SeqTrainer(Trainer, transformers.Seq2SeqTrainer):
    """transformers' ``Seq2SeqTrainer`` on lockstep. See ``Trainer``."""
