"""All private parts of transformers' Trainer that this package uses, in one place.

Trainer has no public interface below its loop: no hook replaces the body of a step. So this module
overrides private methods, which transformers may change in any version (``_versions.py`` lists the
tested ones).

The order of calls in ``Trainer.train``; ``>`` marks the methods that are replaced here::

    _inner_training_loop
        get_train_dataloader
      > set_initial_training_values      prepares the loader
      > _init_training_state             prepares the rest, restores the run: the first epoch
      > _prepare_for_training            (already called by the method before)
        on_train_begin
        for each epoch:
            on_epoch_begin               (Handler)
          > _run_epoch
              > get_batch_samples        returns one global batch
                on_step_begin
              > training_step            one phase: the class's training_step once per shard
              > floating_point_ops, _track_num_input_tokens
                _clip_grad_norm, on_pre_optimizer_step, optimizer.step
                on_optimizer_step, lr_scheduler.step
                on_step_end              (Handler)
              > _maybe_log_save_evaluate
                on_epoch_end             (Handler)
              > _maybe_log_save_evaluate
      > _finalize_training

``tests/integrations/transformers/test_transformers_host.py`` fails first if a version of
transformers calls the methods in another order."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import transformers
from accelerate.state import AcceleratorState, PartialState
from transformers.trainer_callback import CallbackHandler
from typing_extensions import override

from lockstep._base.config import STRATEGIES
from lockstep._base.errors import UsageError
from lockstep._joining.team import Team
from lockstep._world.comm.dtensors import full_tensor
from lockstep.integrations.transformers._accelerator import LogicalAccelerator
from lockstep.integrations.transformers._session import team as joined_team

OWN = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""The private attributes of Trainer that belong to a training: the loss since the last log, and the
first step."""


if TYPE_CHECKING:
    from transformers import TrainingArguments as _Arguments
else:
    # A mixin at run time: with TrainingArguments as a base, its fields would override the defaults
    # of the class that the mixin is combined with.
    _Arguments = object


class HostArguments(_Arguments):
    """The private part of ``TrainingArguments``."""

    join: ClassVar[Callable[[Any], Team]]
    """The method that joins the run."""

    @cached_property
    def _setup_devices(self) -> torch.device:
        """Joins the run, and makes accelerate see a single process whose index is the rank, so that
        only rank 0 prints and saves."""
        team = self.join()
        is_on_cpu = team.device.type == "cpu"
        # accelerate's state is a singleton, which an earlier import may have filled.
        AcceleratorState._reset_state(reset_partial_state=True)
        with team.hide_launcher():
            state = PartialState(cpu=is_on_cpu)
        state.process_index, state.local_process_index, state.device = team.rank, team.local_rank, team.device
        self.distributed_state = state
        self._n_gpu = 0 if is_on_cpu else 1
        return team.device

    @property
    def team(self) -> Team:
        """The team of this process."""
        self._setup_devices  # noqa: B018 -- joins
        return joined_team()


class Stages(ABC):
    """The work of lockstep at the stages of Trainer's loop, implemented by ``Training``."""

    loader: Any
    """The prepared loader in Trainer's loop."""

    @abstractmethod
    def begin(self, num_epochs: int) -> int:
        """Prepares the remaining objects and restores the run. Returns the first epoch to run."""

    @abstractmethod
    def reapply(self) -> None:
        """Restores the attributes that Trainer reset after ``begin``."""

    @abstractmethod
    def begin_epoch(self) -> bool:
        """Begins an epoch. Returns False if an earlier launch was interrupted inside it."""

    @property
    @abstractmethod
    def epoch(self) -> float:
        """The number of epochs that were trained."""

    @abstractmethod
    def end_pass(self) -> None:
        """Ends a pass after the steps that Trainer wants of an epoch."""

    @abstractmethod
    def step(self, model: Any, batch: Any) -> torch.Tensor:
        """Computes the gradient of a global batch. Returns its mean loss."""

    @abstractmethod
    def floating_point_ops(self, batch: Any) -> float:
        """Returns the number of floating-point operations of the newest global batch."""

    @abstractmethod
    def track_tokens(self, batch: Any) -> None:
        """Counts the input tokens of the newest global batch."""

    @abstractmethod
    def end(self) -> None:
        """Ends the loop over epochs."""


class HostTrainer(transformers.Trainer):
    """A Trainer whose private stages call ``Stages``."""

    training: Stages | None = None
    """The current training; None: there is none."""

    is_past = False
    """Whether the run resumes in a later training, so that the weights after this training are not
    available."""

    @property
    def team(self) -> Team:
        """The team of this process."""
        return joined_team()

    def check_start(self, *, is_resumed: bool) -> None:
        """Checks the start of a training, after the run was restored.

        Raises:
            UsageError: the run is new, although the script passes a checkpoint to resume from.
        """

    @override
    def create_accelerator_and_postprocess(self) -> None:
        with self.team.hide_launcher():
            super().create_accelerator_and_postprocess()
        self.accelerator: Any = LogicalAccelerator(vars(self)["accelerator"], self.team)
        self.gather_function = self.accelerator.gather_for_metrics

    @override
    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        return self.team.prepare(self.model)

    # Training

    @override
    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, resume_from_checkpoint: Any, trial: Any
    ) -> tuple[int, int]:
        assert self.training is not None
        super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, None, trial)
        self._made = super()._prepare_for_training(max_steps, self.training.loader, None)
        # Callbacks may fetch a batch from it. From the prepared loader, they would begin a pass of
        # the run and leave it.
        self.callback_handler.train_dataloader = self.training.loader.wrapped
        return self.training.begin(num_train_epochs), 0

    @override
    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        return self._made

    @override
    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Returns the next global batch, whose items ``Training.step`` counts per shard."""
        batch = next(epoch_iterator, None)
        return [] if batch is None else [batch], None

    @override
    def _run_epoch(self, **kwargs: Any) -> None:
        stages = self.training
        assert stages is not None
        stages.reapply()
        step: dict[str, Callable[..., Any]] = {
            "training_step": lambda model, batch, num_items_in_batch=None: stages.step(model, batch),
            "floating_point_ops": stages.floating_point_ops,
            "_track_num_input_tokens": stages.track_tokens,
        }
        with standing_in(self, **step), self.accumulating(1):
            super()._run_epoch(**kwargs)

    @override
    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        with self.accumulating(self.team.config.accumulate):
            super()._maybe_log_save_evaluate(*args, **kwargs)

    @override
    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: Any) -> Any:
        assert self.training is not None
        self.training.reapply()
        self.training.end()
        with contextlib.ExitStack() as stack:
            # Rank 0 removes old checkpoints here, so the others must not look for them. If the run
            # resumes in a later training, an earlier launch has removed them already.
            if self.is_past or not self.args.should_save:
                stack.enter_context(standing_in(self, _get_output_dir=lambda trial: self.args.output_dir + "/none"))
            if self.is_past:
                stack.enter_context(standing_in(self, _load_best_model=lambda: None))
            return super()._finalize_training(trial, num_train_samples, start_time)

    @contextlib.contextmanager
    def accumulating(self, steps: int) -> Iterator[None]:
        """Sets the accumulation steps that Trainer sees inside the block.

        A batch in Trainer's loop contains all micro-batches of a step, so the loop must see 1.
        Callbacks, logs and saving see the number of the arguments."""
        args, before = self.args, self.args.gradient_accumulation_steps
        args.gradient_accumulation_steps = steps
        try:
            yield
        finally:
            args.gradient_accumulation_steps = before

    def count_items(self, inputs: Any) -> Any:
        """Returns the number of items over which a shard's loss is a mean, as a scalar tensor;
        None: its samples."""
        return self._get_num_items_in_batch([inputs], self.args.device)

    def count_tokens(self, inputs: Any) -> int:
        """Returns the number of input tokens of a shard."""
        # Trainer adds to its total, so the number is the difference. The total is added later, for
        # the global batch.
        before = self.state.num_input_tokens_seen
        try:
            type(self)._track_num_input_tokens(self, inputs)
            return int(self.state.num_input_tokens_seen - before)
        finally:
            self.state.num_input_tokens_seen = before

    # For subclasses that collect values while they compute a shard or an evaluation batch

    def collect(self) -> Any:
        """Returns the values that were collected since the last call, as a tree of tensors and
        plain values. lockstep calls it after each shard and evaluation batch, on the process that
        computed it."""

    def take(self, collected: list[Any]) -> None:
        """Receives the collected values of all shards of a step, in order, or of one evaluation
        batch. lockstep calls it on every process."""

    @property
    def collects(self) -> bool:
        """Whether a subclass collects values."""
        return type(self).collect is not HostTrainer.collect

    # Evaluation

    @override
    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
        # eval_on_start: an earlier launch did this evaluation.
        if skip_scheduler and self.state.global_step > 0:
            return {}
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    # Files

    @override
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        def save_model(output_dir: Any = None, _internal_call: bool = False) -> None:
            type(self).save_model(self, output_dir, _internal_call)
            self.team.barrier()  # Next, Trainer checks on every rank that the folder exists.

        with standing_in(self, save_model=save_model):
            super()._save_checkpoint(model, trial)
        self.team.barrier()

    @override
    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save:
            super()._save_rng_state(output_dir)

    @override
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if state_dict is None and STRATEGIES[self.team.config.strategy].shards_parameters:
            # All ranks call full_tensor(), a collective. Tied names must share one tensor, which
            # transformers then writes once.
            whole: dict[Any, Any] = {}
            of = dict(self.model.named_parameters(remove_duplicate=False))
            state_dict = {}
            for name, value in self.model.state_dict().items():
                key = of.get(name, name)
                state_dict[name] = whole[key] if key in whole else whole.setdefault(key, full_tensor(value).cpu())
        super()._save(output_dir, state_dict)


class Handler(CallbackHandler):
    """A replacement for the callback handler that Trainer created, whose state it shares.

    Args:
        made: Trainer's callback handler.
        trainer: the ``HostTrainer``.
    """

    def __init__(self, made: CallbackHandler, trainer: Any) -> None:
        self.__dict__ = made.__dict__
        self.trainer = trainer

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = super().on_train_begin(args, state, control, **kwargs)
        if self.trainer.training is not None:
            self.trainer.training.check_callbacks()
        return control

    @override
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        training = self.trainer.training
        if training is None or training.begin_epoch():
            return super().on_epoch_begin(args, state, control, **kwargs)
        control.should_epoch_stop = False
        return control

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.trainer.training is not None:
            state.epoch = self.trainer.training.epoch
        return super().on_step_end(args, state, control, **kwargs)

    @override
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.trainer.training is not None:
            self.trainer.training.end_pass()
        return super().on_epoch_end(args, state, control, **kwargs)

    @override
    def call_event(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        with self.trainer.accumulating(self.trainer.team.config.accumulate):
            return super().call_event(event, args, state, control, **kwargs)


@contextlib.contextmanager
def standing_in(target: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """Replaces methods of one object inside the block.

    Raises:
        UsageError: the script assigned one of these methods to the object, and it would not be
            called.
    """
    if assigned := vars(target).keys() & methods.keys():
        (name, *_) = sorted(assigned)
        raise UsageError(
            f"trainer.{name} was assigned on this object, but lockstep calls the method of its class. Override {name} in a "
            "subclass.",
            code="method-on-object",
        )
    vars(target).update(methods)
    try:
        yield
    finally:
        for name in methods:
            vars(target).pop(name, None)
