"""Where global batches come from, and how this process's shards are taken out of them.

There are three kinds of source: samples that can be indexed (a DataLoader over a map-style data set), a stream of samples
(a DataLoader over an ``IterableDataset``), and ready batches (any iterable). Each yields this process's turns in order:
a MicroStep with its batch, or an Absence for a step in which all of this process's shards are empty.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lockstep.data.batches import count_samples, cut
from lockstep.data.fetch import FetchPool, Request, choose_fetcher, single_threaded, worker_loader
from lockstep.data.streams import Purpose, reseed
from lockstep.errors import DataError
from lockstep.plan.shards import MicroStep, micro_steps, num_active_ranks, shard_slice


@dataclass(frozen=True, slots=True)
class Absence:
    """A step in which this process has nothing to compute."""

    step: int
    num_active_ranks: int


Turn = tuple[MicroStep, Any] | tuple[Absence, None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Which shards are this process's, and where its random streams start."""

    rank: int
    world_size: int
    num_shards: int
    seed: int
    loader: int
    """Number of the loader among those prepared: two loaders draw from different streams."""

    def turns(self, step: int, num_samples: int) -> list[MicroStep]:
        return micro_steps(step, num_samples, self.rank, self.world_size, self.num_shards)

    def absence(self, step: int, num_samples: int) -> Absence:
        return Absence(step, num_active_ranks(num_samples, self.world_size, self.num_shards))

    def part(self, turn: MicroStep) -> slice:
        return shard_slice(turn.shard, turn.step_samples, self.num_shards)

    def reseed(self, purpose: Purpose, *place: int) -> None:
        reseed(self.seed, purpose, self.loader, *place)


class Source(Protocol):
    """Global batches in order, cut for one process."""

    def deal(self, first_step: int, epoch: int) -> Iterator[Turn]:
        """This process's turns in one pass, whose first step has the number ``first_step``."""

    def num_steps(self) -> int:
        """Global batches in one pass. TypeError if that cannot be known."""

    def describe(self) -> list[str]:
        """What must be the same on every rank, a line each."""


def _set_epoch(epoch: int, *objects: object) -> None:
    for thing in objects:
        setter = getattr(thing, "set_epoch", None)
        if callable(setter):
            setter(epoch)


_DRAW_ONCE = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


class SampleSource:
    """A DataLoader over a data set that can be indexed."""

    def __init__(self, loader: DataLoader[Any], share: Share) -> None:
        self._loader = loader
        self._share = share
        self._batch_sampler: Iterable[Sequence[Any]] = loader.batch_sampler  # type: ignore[assignment]
        self._pool = FetchPool(choose_fetcher(share.seed, loader.dataset, loader.collate_fn), loader)
        # PyTorch's samplers draw from the global generators only before their first index.
        self._draws_once = type(loader.batch_sampler) is BatchSampler and type(loader.sampler) in _DRAW_ONCE

    def deal(self, first_step: int, epoch: int) -> Iterator[Turn]:
        share = self._share
        turns: deque[MicroStep | Absence] = deque()

        def requests() -> Iterator[Request]:
            for step, indices in enumerate(self._draw(epoch), first_step):
                own = share.turns(step, len(indices))
                if not own:
                    turns.append(share.absence(step, len(indices)))
                for turn in own:
                    turns.append(turn)
                    yield Request(Purpose.FETCH, (share.loader, step, turn.shard), indices[share.part(turn)])

        for batch in self._pool.run(requests()):
            while isinstance(turn := turns.popleft(), Absence):
                yield turn, None
            yield turn, batch
        for turn in turns:  # the last steps of the pass may have nothing for this process
            assert isinstance(turn, Absence)
            yield turn, None

    def _draw(self, epoch: int) -> Iterator[Sequence[Any]]:
        _set_epoch(epoch, self._loader.dataset, self._loader.sampler, self._batch_sampler)
        share = self._share
        share.reseed(Purpose.SAMPLER, epoch, 0)
        batches = iter(self._batch_sampler)
        for number in itertools.count():
            if number and not self._draws_once:
                share.reseed(Purpose.SAMPLER, epoch, number)
            indices = next(batches, None)
            if indices is None:
                return
            if len(indices):
                yield indices

    def num_steps(self) -> int:
        return len(self._batch_sampler)  # type: ignore[arg-type]

    def describe(self) -> list[str]:
        lines = [
            f"samples of {type(self._loader.dataset).__name__}",
            f"sampler {type(self._loader.sampler).__name__}, batch sampler {type(self._batch_sampler).__name__}",
            f"batch_size={self._loader.batch_size}, drop_last={self._loader.drop_last}",
        ]
        return lines + _lengths(("data set", self._loader.dataset), ("global batches", self._batch_sampler))


class _StreamReader(IterableDataset[Turn]):
    """Reads the whole stream of samples and collates those of this process's shards."""

    def __init__(self, loader: DataLoader[Any], share: Share) -> None:
        assert loader.batch_size is not None
        self._dataset = loader.dataset
        self._collate_fn: Callable[[Any], Any] = loader.collate_fn
        self._batch_size = loader.batch_size
        self._drop_last = loader.drop_last
        self._share = share
        self.first_step = 1
        self.epoch = 0

    def __iter__(self) -> Iterator[Turn]:
        share = self._share
        share.reseed(Purpose.SAMPLER, self.epoch)
        samples = iter(self._dataset)
        for step in itertools.count(self.first_step):
            # Every rank reads every sample, all from the one stream of this step.
            share.reseed(Purpose.FETCH, step, share.num_shards)
            batch = list(itertools.islice(samples, self._batch_size))
            if not batch or (self._drop_last and len(batch) < self._batch_size):
                return
            own = share.turns(step, len(batch))
            if not own:
                yield share.absence(step, len(batch)), None
            for turn in own:
                share.reseed(Purpose.FETCH, step, turn.shard)
                yield turn, self._collate_fn(batch[share.part(turn)])


class StreamSource:
    """A DataLoader over an ``IterableDataset``: every rank reads the whole stream and keeps its part.

    One loader worker reads, however many were asked for: several would each read the whole stream.
    """

    def __init__(self, loader: DataLoader[Any], share: Share) -> None:
        self._loader = loader
        self._reader = _StreamReader(loader, share)

    def deal(self, first_step: int, epoch: int) -> Iterator[Turn]:
        _set_epoch(epoch, self._loader.dataset)
        self._reader.first_step = first_step
        self._reader.epoch = epoch
        if self._loader.num_workers == 0:
            with_one_thread = iter(self._reader)
            while True:
                with single_threaded():
                    turn = next(with_one_thread, None)
                if turn is None:
                    return
                yield turn
        # Not persistent: a worker that lives on would not learn of the new pass.
        yield from worker_loader(self._reader, self._loader, num_workers=1, persistent_workers=False)

    def num_steps(self) -> int:
        return len(self._loader)

    def describe(self) -> list[str]:
        lines = [
            f"stream of {type(self._loader.dataset).__name__}",
            f"batch_size={self._loader.batch_size}, drop_last={self._loader.drop_last}",
        ]
        return lines + _lengths(("data set", self._loader.dataset))


class ReadySource:
    """Any iterable of ready batches: every rank takes each batch, and keeps its rows."""

    def __init__(self, batches: Iterable[Any], share: Share) -> None:
        self._batches = batches
        self._share = share

    def deal(self, first_step: int, epoch: int) -> Iterator[Turn]:
        share = self._share
        _set_epoch(epoch, self._batches, getattr(self._batches, "dataset", None), getattr(self._batches, "sampler", None))
        share.reseed(Purpose.SAMPLER, epoch)
        batches = iter(self._batches)
        for step in itertools.count(first_step):
            share.reseed(Purpose.FETCH, step, share.num_shards)
            try:
                batch = next(batches)
            except StopIteration:
                return
            num_samples = count_samples(batch)
            own = share.turns(step, num_samples)
            if not own:
                yield share.absence(step, num_samples), None
            for turn in own:
                yield turn, cut(batch, share.part(turn), num_samples)

    def num_steps(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def describe(self) -> list[str]:
        return [f"ready batches of {type(self._batches).__name__}", *_lengths(("global batches", self._batches))]


def _lengths(*named: tuple[str, object]) -> list[str]:
    lines = []
    for name, thing in named:
        try:
            lines.append(f"{name} of length {len(thing)}")  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            lines.append(f"{name} of unknown length")
    return lines


def choose_source(batches: Iterable[Any], share: Share) -> Source:
    """The source for what the user gave to ``prepare``.

    Raises:
        DataError: it is already split for several processes, or can be read only once.
    """
    if not isinstance(batches, DataLoader):
        if iter(batches) is batches:
            raise DataError(
                f"a {type(batches).__name__} can be read only once, so a second epoch would be empty: "
                "give prepare() a list, or an object whose __iter__ starts anew"
            )
        return ReadySource(batches, share)
    for sampler in (batches.sampler, batches.batch_sampler):
        if isinstance(sampler, DistributedSampler):
            raise DataError(
                "this DataLoader has a DistributedSampler, which leaves each process only its own samples, and lockstep "
                "would split those again: leave the sampler out (use shuffle=True), and set batch_size to the global batch"
            )
    if batches.batch_size is None and batches.batch_sampler is None:
        return ReadySource(batches, share)
    if isinstance(batches.dataset, IterableDataset):
        return StreamSource(batches, share)
    return SampleSource(batches, share)
