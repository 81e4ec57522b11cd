"""One call of ``Trainer.train``: its objects in the run, and its steps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from lockstep._data.loader import PreparedLoader
from lockstep._joining.team import Team
from lockstep._loop.hosted import HostedEpochs
from lockstep.integrations.transformers._host import OWN, Stages
from lockstep.integrations.transformers._session import next_training
from lockstep.integrations.transformers._shard_attributes import ShardAttributes
from lockstep.integrations.transformers._state import CallbackAttributes, Clocks, Outcome, TrainingState, attributes_of


class Passes:
    """The prepared loader in Trainer's loop, which counts the steps of the current pass.

    ``len()`` is the number of steps. Other attributes are forwarded to the prepared loader.
    """

    def __init__(self, loader: PreparedLoader) -> None:
        self.loader = loader
        self.num_done = 0
        """The number of steps of the newest pass so far, including earlier launches."""

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.num_done = self.loader.num_skipped
        return self._count(iter(self.loader))

    def _count(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.num_done += 1
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class Training(Stages):
    """One training on lockstep, from ``begin`` to ``end``.

    Args:
        trainer: the ``HostTrainer``.
        loader: its training loader.
    """

    def __init__(self, trainer: Any, loader: Any) -> None:
        self._trainer = trainer
        self._team: Team = trainer.team
        # If each process creates a directory (tempfile.mkdtemp()), Trainer would look for the files
        # of rank 0 in the wrong one.
        trainer.args.output_dir = self._team.all_gather_object(trainer.args.output_dir)[0]
        prepared = loader if isinstance(loader, PreparedLoader) else self._team.prepare(loader)
        self.loader: Passes = Passes(prepared)
        self._attributes = ShardAttributes(trainer)
        self._epochs: HostedEpochs | None = None
        self._epoch = 0
        self._num_epochs = 0
        self._is_cut = False
        """Whether the newest pass ended early."""
        self._state: TrainingState | None = None
        self._outcome: Outcome | None = None
        self._callbacks: CallbackAttributes | None = None

    @override
    def begin(self, num_epochs: int) -> int:
        trainer, team = self._trainer, self._team
        schedule, number = trainer.lr_scheduler, next_training()
        if isinstance(schedule, LRScheduler):
            team.prepare(schedule)
        elif schedule is not None:
            team.register(f"trainer-{number}-schedule", schedule)
        self._state, clocks = TrainingState(trainer, OWN), Clocks(trainer.state)
        self._outcome = Outcome(team.run_dir / f"trainer-{number}.pt", [self._state, clocks])
        team.register(f"trainer-{number}", self._state)
        team.register(f"trainer-{number}-clocks", clocks, compare=False)
        self._num_epochs = num_epochs
        for name, attributes in attributes_of(trainer).items():
            team.register(f"trainer-{number}: {name}", attributes)
        self._callbacks = CallbackAttributes(trainer)
        team.register(f"trainer-{number}-callbacks", self._callbacks, compare=False)
        self._epochs = team.hosted_epochs(num_epochs)
        first, trainer.is_past = min(self._epochs.first, num_epochs), self._epochs.is_past
        if first >= num_epochs > 0 and trainer.state.global_step == 0:
            # An earlier launch finished this training, and the run resumes after it.
            self._outcome.recall()
        trainer.check_start(is_resumed=first > 0 or self._epochs.is_within)
        self._epoch = first - 1
        return first

    def check_callbacks(self) -> None:
        """Warns if ``on_train_begin`` reset attributes of a callback that were restored."""
        assert self._callbacks is not None
        if self._team.is_main and (lost := self._callbacks.lost()):
            warnings.warn(
                f"lockstep: on_train_begin reset {', '.join(lost)} in a run that resumes, so the values of the earlier launch "
                "are lost. on_train_begin runs in every launch, after attributes are restored. Unless this is intended (a "
                "timer), set them in the callback's __init__.",
                RuntimeWarning,
                stacklevel=2,
            )

    @override
    def reapply(self) -> None:
        assert self._state is not None
        self._state.reapply()

    def begin_epoch(self) -> bool:
        """Begins an epoch. Returns False if an earlier launch was interrupted inside it."""
        assert self._epochs is not None
        self._epoch += 1
        self._epochs.begin(self._epoch)
        return not (self._epochs.is_within and self._epoch == self._epochs.first)

    @property
    def epoch(self) -> float:
        """The number of epochs that were trained, counted in batches of Trainer, since the last
        step of an epoch may have fewer batches."""
        num_batches = self._num_batches()
        num_done = self.loader.num_done * self._team.config.accumulate
        return self._epoch + min(num_done, num_batches) / num_batches

    def _num_batches(self) -> int:
        try:
            return len(self.loader.wrapped)
        except TypeError:
            # A stream has no length. Trainer then counts all steps as one epoch.
            return int(self._trainer.state.max_steps) * self._team.config.accumulate

    @override
    def step(self, model: Any, batch: Any) -> torch.Tensor:
        trainer, kind = self._trainer, type(self._trainer)
        counts_tokens = trainer.args.include_num_input_tokens_seen != "no"
        trainer.current_gradient_accumulation_steps = 1
        # Trainer does this in training_step, which a rank without samples in this step does not
        # run. A schedule-free optimizer swaps its weights in train(), so all ranks must call it.
        model.train()
        if callable(change := getattr(trainer.optimizer, "train", None)):
            change()
        for inputs in batch.shards:
            num_items = trainer.count_items(inputs)
            trainer.accelerator.weight = num_items
            # A shard without items has weight 0. Its mean would be 0 / 0.
            at_least_one = num_items if num_items is None else num_items.clamp(min=1)
            with self._attributes.unchanged("training_step"):
                loss = kind.training_step(trainer, model, inputs, at_least_one)
                collected = trainer.collect()
            batch.add(loss=loss)
            batch.add(flos=int(kind.floating_point_ops(trainer, inputs)), reduction="sum")
            if counts_tokens:
                batch.add(tokens=trainer.count_tokens(inputs), reduction="sum")
            if trainer.collects:
                batch.share(collected)
        trainer.accelerator.weight = None
        if trainer.collects:
            trainer.take(batch.shared())
        for _ in batch.plan.sizes[1:]:
            trainer.control = trainer.callback_handler.on_substep_end(trainer.args, trainer.state, trainer.control)
        return torch.tensor(batch["loss"], device=trainer.args.device)

    @override
    def floating_point_ops(self, batch: Any) -> float:
        return float(batch["flos"])

    @override
    def track_tokens(self, batch: Any) -> None:
        if self._trainer.args.include_num_input_tokens_seen != "no":
            self._trainer.state.num_input_tokens_seen += int(batch["tokens"])

    def end_pass(self) -> None:
        """Ends a pass after the steps that Trainer wants of an epoch."""
        self.loader.loader.finish()
        is_stream = self._num_epochs == sys.maxsize
        self._is_cut = not is_stream and self.loader.num_done * self._team.config.accumulate < self._num_batches()

    @override
    def end(self) -> None:
        assert self._epochs is not None
        self._epochs.end(early=self._is_cut)
        if self._team.is_main and self._outcome is not None:
            self._outcome.keep()
