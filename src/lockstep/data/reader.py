"""Reading a streamed data set: every rank reads the whole stream, in one process, and collates its own part."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from lockstep.data.changed_samples import ChangedSamples, definition_of
from lockstep.data.culprit import Culprit
from lockstep.data.fetch import from_workers, single_threaded, worker_loader
from lockstep.data.states import has_state, put_state, take_state
from lockstep.data.streams import Purpose, reseed
from lockstep.data.torch_loader import USUAL_PREFETCH

_END = object()
_MAX_STEPS_AHEAD = 64
"""The number of steps for which states are kept, by which workers may be ahead of the loop."""


@dataclass(frozen=True, slots=True)
class _After:
    """Precedes the batches of a step: the state of the stream after them."""

    step: int
    state: Any


class StreamReader(IterableDataset[Any]):
    """Reads the stream of a DataLoader over an ``IterableDataset``; a subclass makes batches of the samples.

    A single loader worker reads, whatever ``num_workers`` says: several would each read the whole stream.

    Args:
        loader: the user's.
        seed: the run's.
        purpose: that of the random streams in which samples are read.
        key: the loader and the part in the keys of those streams, around the number of the batch.
        rank: this process's, for error messages.
        group: how many batches are yielded together, under one number.
    """

    def __init__(
        self, loader: DataLoader[Any], seed: int, purpose: Purpose, key: tuple[int, int], rank: int, group: int = 1
    ) -> None:
        self.dataset = loader.dataset
        self._collate_fn: Callable[[Any], Any] = loader.collate_fn
        self._culprit = Culprit(loader.dataset, rank, is_ready=loader.batch_size is None)
        self._changed = ChangedSamples(
            loader.dataset, speaks=rank == 0 and loader.collate_fn not in (default_collate, default_convert)
        )
        self._num_collated = 0
        self._batch_size = loader.batch_size
        self._drop_last = loader.drop_last
        self._seed = seed
        self._purpose = purpose
        self.key = key
        self.items_ahead = 1
        """How many items of ``make`` count as one batch that the worker prepares ahead."""
        self._group = group
        self._first = 0
        self._skip = 0
        self._pass = 0
        self._has_state = has_state(loader.dataset)
        self._after: dict[int, Any] = {}
        self._at_begin: Any = None
        self._resumed: Any = None

    def state(self, step: int | None, *, is_read_again: bool = False) -> Any:
        """The state from which to resume after ``step`` of the current pass; None: between two passes.

        A stream without a state of its own is read again from its beginning, as is any stream with ``is_read_again``.
        """
        if step is None:
            return {"own": take_state(self.dataset)}
        is_read_on = self._has_state and not is_read_again and step >= self._first
        return {"after": self._after[step]} if is_read_on else self._at_begin

    def load_state(self, state: Any) -> None:
        """Resume from a state with the next ``read``."""
        self._resumed = state

    def read(self, like: DataLoader[Any], first: int, number: int, skip: int = 0) -> Iterator[Any]:
        """Read pass ``number``, with groups numbered from ``first``, without the first ``skip`` groups. In one worker process
        if ``like`` has any workers, else in this process."""
        self._first, self._pass, self._skip = first, number, skip
        if self._resumed is not None and "own" in self._resumed:
            put_state(self.dataset, self._resumed["own"])  # workers start with a copy of this process's data set
        self._at_begin = {"own": take_state(self.dataset)}
        try:
            for item in self._read(like):
                self._resumed = None  # it has reached the worker
                if isinstance(item, _After):
                    self._after = {
                        step: state for step, state in self._after.items() if step >= item.step - _MAX_STEPS_AHEAD
                    }
                    self._after[item.step] = item.state
                else:
                    yield item
        finally:
            self._resumed = None

    def _read(self, like: DataLoader[Any]) -> Iterator[Any]:
        if like.num_workers > 0:
            ahead = (like.prefetch_factor or USUAL_PREFETCH) * self.items_ahead
            # Not persistent: a persistent worker would not learn of the new pass.
            yield from from_workers(
                worker_loader(self, like, num_workers=1, persistent_workers=False, prefetch_factor=ahead)
            )
            return
        items, one_thread = iter(self), single_threaded()
        while True:
            with one_thread:
                item = next(items, _END)
            if item is _END:
                return
            yield item

    def __iter__(self) -> Iterator[Any]:
        loader, part = self.key
        reseed(self._seed, Purpose.SAMPLER, loader, self._pass)
        num_read, begin = 0, self._first
        if self._resumed is not None and "after" in self._resumed:
            put_state(self.dataset, self._resumed["after"]["own"])
            num_read, begin = self._resumed["after"]["num_read"], self._first + self._skip
        samples = iter(self.dataset)
        for batch in itertools.count(begin):
            parts: list[Any] = []
            first_sample = num_read
            for number in range(self._group):
                # Every rank reads every sample, from the same random stream per batch.
                reseed(self._seed, self._purpose, loader, batch, part, number)
                read = self._take(samples, num_read, batch)
                if not read and self._resumed is not None and self._has_state and num_read == 0 == number:
                    # A state taken after a pass may mean the end of that pass rather than the beginning of the next.
                    samples = iter(self.dataset)
                    read = self._take(samples, num_read, batch)
                if not read or (self._drop_last and len(read) < (self._batch_size or 1)):
                    break
                num_read += len(read)
                parts.append(read if self._batch_size is not None else read[0])
            if parts and batch >= self._first + self._skip:
                if self._has_state:
                    yield _After(batch, {"num_read": num_read, "own": take_state(self.dataset)})
                yield from self.make(batch, parts, first_sample)
            if len(parts) < self._group:
                return

    def _take(self, samples: Iterator[Any], num_read: int, batch: int) -> list[Any]:
        read: list[Any] = []
        try:
            read.extend(
                itertools.islice(samples, self._batch_size or 1)
            )  # after an error, ``read`` has the samples before it
        except Exception as error:
            raise self._culprit.read(error, num_read + len(read), self._purpose, batch) from error
        return read

    def collate(self, samples: Any, positions: Sequence[int], batch: int, shard: int | None = None) -> Any:
        """Apply the user's ``collate_fn`` to samples or a ready batch; ``positions`` in the pass are for error messages."""
        self._num_collated += 1
        before = self._changed.look(self._num_collated, [samples]) if self._num_collated >= self._changed.next else None
        try:
            collated = self._collate_fn(samples)
        except Exception as error:
            raise self._culprit.collating(error, positions, self._purpose, batch, shard) from error
        if before is not None:
            self._changed.compare(before, lambda: definition_of(self._collate_fn))
        return collated

    @abstractmethod
    def make(self, batch: int, parts: list[Any], first_sample: int) -> Iterator[Any]:
        """The items to yield for a group of batches.

        Args:
            batch: number of the group.
            parts: its batches: lists of samples, or ready batches.
            first_sample: number of samples (or ready batches) of this pass before the group.
        """
