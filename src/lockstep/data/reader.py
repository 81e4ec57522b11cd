"""Reading a data set that is a stream: every rank reads all of it, in one place, and makes batches of its part."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lockstep.data.fetch import single_threaded, worker_loader
from lockstep.data.streams import Purpose, reseed

_END = object()


class StreamReader(IterableDataset[Any]):
    """Reads the stream of a DataLoader over an ``IterableDataset``; a subclass says what becomes of it.

    One loader worker reads, however many were asked for: several would each read the whole stream.

    Args:
        loader: the user's.
        seed: of the run.
        purpose: of the random streams in which samples are read.
        place: where those streams are, next to the number of the batch.
        group: how many batches are handed on together, under one number.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, purpose: Purpose, place: tuple[int, int], group: int = 1) -> None:
        self.dataset = loader.dataset
        self.collate_fn: Callable[[Any], Any] = loader.collate_fn
        self._batch_size = loader.batch_size
        self._drop_last = loader.drop_last
        self._seed = seed
        self._purpose = purpose
        self._place = place
        self._group = group
        self._first = 0
        self._pass = 0

    def read(self, like: DataLoader[Any], first: int, number: int) -> Iterator[Any]:
        """Pass number ``number``, whose batches count from ``first``: in one worker if ``like`` has any, else here."""
        self._first, self._pass = first, number
        if like.num_workers > 0:
            # Not persistent: a worker that lives on would not learn of the new pass.
            yield from worker_loader(self, like, num_workers=1, persistent_workers=False)
            return
        items = iter(self)
        while True:
            with single_threaded():
                item = next(items, _END)
            if item is _END:
                return
            yield item

    def __iter__(self) -> Iterator[Any]:
        loader, part = self._place
        reseed(self._seed, Purpose.SAMPLER, loader, self._pass)
        samples = iter(self.dataset)
        num_read = 0
        for batch in itertools.count(self._first):
            parts: list[Any] = []
            first_sample = num_read
            for number in range(self._group):
                # Every rank reads every sample, all from the one stream of this batch.
                reseed(self._seed, self._purpose, loader, batch, part, number)
                found = list(itertools.islice(samples, self._batch_size or 1))
                if not found or (self._drop_last and len(found) < (self._batch_size or 1)):
                    break
                num_read += len(found)
                parts.append(found if self._batch_size is not None else found[0])
            if parts:
                yield from self.make(batch, parts, first_sample)
            if len(parts) < self._group:
                return

    @abstractmethod
    def make(self, batch: int, parts: list[Any], first_sample: int) -> Iterator[Any]:
        """What to yield for a group of batches of samples (for a data set of ready batches: of one batch).

        Args:
            batch: number of the group.
            parts: its batches: lists of samples, or ready batches.
            first_sample: how many samples (or ready batches) of this pass come before.
        """
