"""The loader that a script loops over, once per global batch, and whose batches are promises."""

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
    """The object that a loader notifies of training passes."""

    def begin_step(self, is_last: bool | None, *, is_resumed: bool) -> None:
        """Records that the loop is about to receive a training batch.

        Args:
            is_last: whether it is the last batch of its pass; None: unknown.
            is_resumed: whether an earlier launch trained on the first batches of the pass.
        """

    def skip_pass(self) -> None:
        """Records that a pass is skipped because an earlier launch of the run completed it."""


class PromisedLoader:
    """The loader that ``accelerator.prepare(loader)`` returns.

    A pass over it trains if gradients are on and a prepared model that is not frozen is in training
    mode (``model.train()``). Otherwise the pass evaluates. Other attributes are forwarded to the
    script's loader.

    Args:
        team: the team of this process.
        plain: the script's loader.
        prepared: the script's loader after ``team.prepare``.
        models: the models that were prepared so far.
        host: the object that is notified of training passes.
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
        """The number of samples of a global batch."""
        return getattr(self.wrapped, "batch_size", None)

    @property
    def total_dataset_length(self) -> int:
        """The number of samples of the dataset."""
        return len(self.wrapped.dataset)  # type: ignore[attr-defined]

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the dataset, if it has ``set_epoch``. The order of samples depends on
        the run's epoch only."""
        set_epoch = getattr(getattr(self.wrapped, "dataset", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return self._train() if torch.is_grad_enabled() and any(map(_trains, self._models)) else self._evaluate()

    def _train(self) -> Iterator[Any]:
        length, before = length_of(self._prepared), self._prepared.num_skipped
        number = before
        for batch in self._prepared:
            if self._structure is None:
                # A rank may have no shard of a small batch, and then learns the structure here.
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
                if batch.number % size == 0:  # W ranks evaluate W batches at the same time
                    round_ = Round()
                is_last = length is not None and batch.number == length - 1
                promised = EvaluatedBatch(self._team, batch, round_, last_rows if is_last else None)
                if self._structure is None:
                    self._structure = promised.read_structure()
                promised.structure = self._structure
                yield from self._lent(promised, self._structure)

    def _last_rows(self) -> int | None:
        """Returns the number of samples of the last batch if it is smaller than the others,
        otherwise None."""
        loader, data = self.wrapped, getattr(self.wrapped, "dataset", None)
        size = getattr(loader, "batch_size", None)
        if not size or getattr(loader, "drop_last", False) or not hasattr(data, "__len__"):
            return None
        sampler = getattr(loader, "sampler", None)
        return len(sampler if hasattr(sampler, "__len__") else data) % size or None  # type: ignore[arg-type]

    def _lent(self, batch: PromisedBatch, structure: Any) -> Iterator[Any]:
        try:
            yield batch.promised(structure)
            # Not in `finally`: after a `break` or an error on this rank alone, the other ranks
            # would not take part in the exchange.
            batch.settle_sums()
        finally:
            batch.end()


def _trains(model: nn.Module) -> bool:
    return model.training and any(parameter.requires_grad for parameter in model.parameters())
