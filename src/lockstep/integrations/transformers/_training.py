"""One call of ``Trainer.train``, as the run sees it."""

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
from lockstep.integrations.transformers._state import CallbackAttributes, Clocks, Outcome, TrainingState, attributes_of


class Passes:
    """The prepared loader in the host's loop, which counts what the host is given.

    ``len()`` is the number of steps. Other attributes are those of the loader.
    """

    def __init__(self, loader: PreparedLoader) -> None:
        self.loader = loader
        self.num_done = 0
        """Steps of the newest pass that were begun, in earlier launches too."""

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
    """See ``Stages``.

    Args:
        trainer: a ``HostTrainer``.
        loader: its training loader.
    """

    def __init__(self, trainer: Any, loader: Any) -> None:
        self._trainer = trainer
        self._team: Team = trainer.team
        # One that each process makes, by tempfile.mkdtemp(), say: the host looks for rank 0's files
        # there.
        trainer.args.output_dir = self._team.all_gather_object(trainer.args.output_dir)[0]
        prepared = loader if isinstance(loader, PreparedLoader) else self._team.prepare(loader)
        self.loader: Passes = Passes(prepared)
        self._epochs: HostedEpochs | None = None
        self._epoch = 0
        self._num_epochs = 0
        self._is_cut = False
        """Whether the newest pass was left before its end."""
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
            # the run resumes behind this training, which an earlier launch has done
            self._outcome.recall()
        trainer.check_start(is_resumed=first > 0 or self._epochs.is_within)
        self._epoch = first - 1
        return first

    def check_callbacks(self) -> None:
        """``on_train_begin`` was called: warn of what it has begun anew in a run that resumes."""
        assert self._callbacks is not None
        if self._team.is_main and (lost := self._callbacks.lost()):
            warnings.warn(
                f"lockstep: the run resumes, and on_train_begin has set {', '.join(lost)} anew, so what the launch before has "
                "counted there is lost. Unless that is meant, as for a clock, set it in the callback's __init__: "
                "on_train_begin is called in each launch, and attributes are restored before.",
                RuntimeWarning,
                stacklevel=2,
            )

    @override
    def reapply(self) -> None:
        assert self._state is not None
        self._state.reapply()

    def begin_epoch(self) -> bool:
        """An epoch begins. Whether this is its beginning, and not where an earlier launch was
        interrupted."""
        assert self._epochs is not None
        self._epoch += 1
        self._epochs.begin(self._epoch)
        return not (self._epochs.is_within and self._epoch == self._epochs.first)

    @property
    def epoch(self) -> float:
        """How many epochs were trained, by the host's batches: the last step may have fewer than
        others."""
        num_batches = self._num_batches()
        num_done = self.loader.num_done * self._team.config.accumulate
        return self._epoch + min(num_done, num_batches) / num_batches

    def _num_batches(self) -> int:
        try:
            return len(self.loader.wrapped)
        except TypeError:  # of a stream: the host counts as if the epoch were all
            return int(self._trainer.state.max_steps) * self._team.config.accumulate

    @override
    def step(self, model: Any, batch: Any) -> torch.Tensor:
        trainer, kind = self._trainer, type(self._trainer)
        counts_tokens = trainer.args.include_num_input_tokens_seen != "no"
        trainer.current_gradient_accumulation_steps = 1
        # Here, on every rank, what the host does in training_step: ranks without samples in this
        # step do not run that.
        model.train()
        if callable(change := getattr(trainer.optimizer, "train", None)):
            change()  # of a schedule-free optimizer, which exchanges the weights
        for inputs in batch.shards:
            num_items = trainer.count_items(inputs)
            trainer.accelerator.weight = num_items
            # A shard without items has no weight, and no mean.
            at_least_one = num_items if num_items is None else num_items.clamp(min=1)
            loss = kind.training_step(trainer, model, inputs, at_least_one)
            batch.add(loss=loss)
            batch.add(flos=int(kind.floating_point_ops(trainer, inputs)), reduction="sum")
            if counts_tokens:
                batch.add(tokens=trainer.count_tokens(inputs), reduction="sum")
            if trainer.collects:
                batch.share(trainer.collect())
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
        """The host has taken the steps of an epoch that it wants."""
        self.loader.loader.finish()
        is_stream = self._num_epochs == sys.maxsize
        self._is_cut = not is_stream and self.loader.num_done * self._team.config.accumulate < self._num_batches()

    @override
    def end(self) -> None:
        assert self._epochs is not None
        self._epochs.end(early=self._is_cut)
        if self._team.is_main and self._outcome is not None:
            self._outcome.keep()
