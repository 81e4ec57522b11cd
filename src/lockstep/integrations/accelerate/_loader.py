"""``PromisedLoader``: a prepared loader, whose loop runs once per global batch and gets
promises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn

import lockstep
from lockstep._data.loader import PreparedLoader
from lockstep._data.torch_loader import length_of
from lockstep.integrations.accelerate._batches import PromisedBatch, TrainingBatch
from lockstep.integrations.accelerate._evaluated import EvaluatedBatch, Round
from lockstep.integrations.accelerate._structure import shape_of


class Host(Protocol):
    """Follows the training passes of loaders."""

    def begin_step(self, is_last: bool | None, *, is_resumed: bool) -> None:
        """A training batch is about to be handed out. ``is_last``: whether it is the last of its
        pass; None: unknown. ``is_resumed``: whether an earlier launch has taken the first batches
        of the pass."""

    def skip_pass(self) -> None:
        """A pass is skipped, since an earlier launch of the run has completed it."""


class PromisedLoader:
    """What ``accelerator.prepare(loader)`` returns.

    A pass trains if gradients are on and a prepared model that is not frozen is in training mode
    (``model.train()``). Otherwise it evaluates.
    Other attributes are those of the script's loader.

    Args:
        team: of this process.
        plain: the script's loader.
        prepared: the same, prepared by the team.
        models: the models that are prepared so far.
        host: follows training passes.
    """

    def __init__(
        self,
        team: lockstep.Team,
        plain: Iterable[Any],
        prepared: PreparedLoader,
        models: Sequence[nn.Module],
        host: Host,
    ) -> None:
        self.wrapped = plain
        self._team = team
        self._prepared = prepared
        self._models = models
        self._host = host
        self._structure: Any = None

    def __len__(self) -> int:
        return len(self._prepared)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a global batch."""
        return getattr(self.wrapped, "batch_size", None)

    @property
    def total_dataset_length(self) -> int:
        """Samples of the data set."""
        return len(self.wrapped.dataset)  # type: ignore[attr-defined]

    def set_epoch(self, epoch: int) -> None:
        """Tell the data set its epoch, if it has a method for that. The order of samples follows
        the run's epoch."""
        tell = getattr(getattr(self.wrapped, "dataset", None), "set_epoch", None)
        if tell is not None:
            tell(epoch)

    def __iter__(self) -> Iterator[Any]:
        return self._train() if torch.is_grad_enabled() and any(map(_trains, self._models)) else self._evaluate()

    def _train(self) -> Iterator[Any]:
        length, before = length_of(self._prepared), self._prepared.num_skipped
        number = before
        for batch in self._prepared:
            if self._structure is None:  # a rank may have no shard of a small batch
                mine = shape_of(batch.data[0]) if batch.data else None
                self._structure = next(item for item in self._team.all_gather_object(mine) if item is not None)
            number += 1
            self._host.begin_step(None if length is None else number == length, is_resumed=before > 0)
            promised = TrainingBatch(self._team, batch, shape_of(batch.data[0]) if batch.data else self._structure)
            yield from self._lent(promised, promised.structure)
        if number == before:
            self._host.skip_pass()

    def _evaluate(self) -> Iterator[Any]:
        size, length, last_rows = self._team.world_size, length_of(self._prepared), self._last_rows()
        with self._team.evaluate(self._models, self.wrapped, share=True) as evaluation:
            for batch in evaluation:
                if batch.number % size == 0:  # a round is computed at once
                    round_ = Round()
                is_last = length is not None and batch.number == length - 1
                promised = EvaluatedBatch(self._team, batch, round_, last_rows if is_last else None)
                if self._structure is None:
                    self._structure = promised.read_structure()
                promised.structure = self._structure
                yield from self._lent(promised, self._structure)

    def _last_rows(self) -> int | None:
        """The number of samples of the last batch, if it has fewer than others."""
        loader, data = self.wrapped, getattr(self.wrapped, "dataset", None)
        size = getattr(loader, "batch_size", None)
        if not size or getattr(loader, "drop_last", False) or not hasattr(data, "__len__"):
            return None
        sampler = getattr(loader, "sampler", None)
        return len(sampler if hasattr(sampler, "__len__") else data) % size or None  # type: ignore[arg-type]

    def _lent(self, batch: PromisedBatch, structure: Any) -> Iterator[Any]:
        try:
            yield batch.promised(structure)
            # not after `break`, which may as well be an error of this rank alone
            batch.settle_sums()
        finally:
            batch.end()


def _trains(model: nn.Module) -> bool:
    return model.training and any(parameter.requires_grad for parameter in model.parameters())
