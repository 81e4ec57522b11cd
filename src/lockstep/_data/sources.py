"""Sources of global batches, from which this process's shards are taken.

::

    loader over a map-style dataset      SampleSource    the sampler runs on every rank, and each
    rank
                                                         fetches the samples of its shards only
    loader over an IterableDataset       StreamSource    every rank reads the whole stream, and
                                                         collates the samples of its shards only
    any iterable of ready batches        ReadySource     every rank reads each batch, and keeps its
                                                         rows

Each yields the steps of a pass in order: this process's part of the step (its plan), and the
samples of each of its micro-batches. A stream cannot be read in parts: only a reader of the first
samples knows the next ones, and how many follow. So W ranks read it W times, and agree
without a message.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from operator import methodcaller
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from lockstep._base.digest import digest
from lockstep._data.assignment import ShardAssignment
from lockstep._data.batches import count_samples, cut, map_tensors
from lockstep._data.fetch import FetchPool, Request, choose_fetcher
from lockstep._data.reader import StreamReader
from lockstep._data.sample_errors import SampleErrors
from lockstep._data.sample_source import Indices, SampleSource
from lockstep._data.source import Source, StepData, lengths
from lockstep._data.states import generators_of, generators_within, has_state, put_state, take_state
from lockstep._data.streams import Purpose
from lockstep._data.torch_loader import check_batches, is_torch_loader, samplers_of, set_epoch
from lockstep._data.trail import Trail
from lockstep._plan.shards import MicroBatch

T = TypeVar("T")
_END = object()


class _ShardReader(StreamReader):
    """A reader that collates the samples of this process's shards."""

    def __init__(self, loader: DataLoader[Any], assignment: ShardAssignment) -> None:
        key = (assignment.loader, assignment.whole)
        is_compared = not assignment.allows_other_data
        super().__init__(loader, assignment.seed, Purpose.FETCH, key, assignment.rank, assignment.accumulate, is_compared)
        self._assignment = assignment

    def make(self, batch: int, parts: list[Any], first_sample: int) -> Iterator[StepData]:
        assignment = self._assignment
        sizes = tuple(map(len, parts))
        plan = assignment.plan(batch, sizes)
        data = []
        for micro in plan.micro_batches:
            micro.samples = _positions(first_sample, sizes, micro)
            assignment.reseed(Purpose.FETCH, batch, micro.shard, micro.part)
            data.append(self.collate(parts[micro.part][micro.rows], micro.samples, batch, micro.shard))
        if assignment.world_size > 1 and batch == self._pass.last_skipped + 1:
            plan.digest = digest(parts)
        yield plan, data


def _positions(first_sample: int, sizes: tuple[int, ...], micro: MicroBatch) -> range:
    """Positions in the pass of a micro-batch's samples; ``first_sample`` is the position of its
    step's first sample."""
    first = first_sample + sum(sizes[: micro.part])
    return range(first + micro.rows.start, first + micro.rows.stop)


class StreamSource(Source):
    """The source for a DataLoader over an ``IterableDataset``: every rank reads the whole stream
    and keeps its part."""

    reads_all = True

    def __init__(self, loader: DataLoader[Any], assignment: ShardAssignment) -> None:
        self._loader = loader
        self._assignment = assignment
        self._reader = _ShardReader(loader, assignment)
        self.plans_in_worker = loader.num_workers > 0

    @override
    def steps(self, first_step: int, epoch: int, skip: int = 0, *, compared: bool = False) -> Iterator[StepData]:
        set_epoch(epoch, self._loader.dataset)
        return self._reader.read(self._loader, first_step, epoch, skip)

    @override
    def state(self, step: int | None) -> Any:
        return self._reader.state(step)

    @override
    def load_state(self, state: Any) -> None:
        self._reader.load_state(state)

    @override
    def num_steps(self) -> int:
        return self._assignment.num_steps(len(self._loader))

    @override
    def describe(self) -> list[str]:
        lines = [
            f"stream of {type(self._loader.dataset).__name__}",
            f"batch_size={self._loader.batch_size}, drop_last={self._loader.drop_last}",
        ]
        return lines + lengths(("data set", self._loader.dataset))


class _ReadyReader(StreamReader):
    """A reader that yields the batches of a stream of ready batches."""

    def make(self, batch: int, parts: list[Any], first_sample: int) -> Iterator[Any]:
        for number, part in enumerate(parts, first_sample):
            yield self.collate(part, (number,), batch)


class ReadySource(Source):
    """The source for any iterable of ready batches: every rank reads each batch and keeps its
    rows."""

    reads_all = True

    def __init__(self, batches: Iterable[Any], assignment: ShardAssignment) -> None:
        self._batches = batches
        self._assignment = assignment
        self._pool: FetchPool | None = None
        self._indices: Indices | None = None
        self._reader: StreamReader | None = None
        self._stateful = [batches, *(samplers_of(batches) if isinstance(batches, DataLoader) else [])]
        self._has_state = has_state(batches)
        self._at_begin: Any = None
        self._is_resumed = False
        """Whether the next pass begins from a state that the iterable defines."""
        dataset = getattr(batches, "dataset", batches)
        self._trail = Trail(dataset, is_compared=not assignment.allows_other_data)
        if is_torch_loader(batches):
            # Not iterated directly, so that random numbers drawn in its workers do not depend on
            # their number.
            if isinstance(batches.dataset, IterableDataset):
                key = (assignment.loader, assignment.whole)
                self._reader = _ReadyReader(
                    batches, assignment.seed, Purpose.FETCH, key, assignment.rank, assignment.accumulate
                )
                # This class has the trail, which skips empty batches.
                self._reader.leaves_marks = False
            else:
                self._pool = FetchPool(choose_fetcher(assignment.seed, batches, assignment.rank), batches)
                self._indices = Indices(batches, batches.sampler, assignment)

    @override
    def steps(self, first_step: int, epoch: int, skip: int = 0, *, compared: bool = False) -> Iterator[StepData]:
        assignment = self._assignment
        is_resumed, self._is_resumed = self._is_resumed, False
        first_sample = 0
        self._trail.begin(first_step, skip)
        if self._reader is None and self._indices is None:
            self._at_begin = list(map(take_state, self._stateful))
        whole = self._whole(first_step, epoch, is_resumed)
        # The iterable may refill the same tensors for each batch, and a step keeps several batches.
        if assignment.accumulate > 1:
            whole = (map_tensors(Tensor.clone, batch, "clone", methodcaller("clone")) for batch in whole)
        num_read = itertools.count(1)
        counted = ((batch, count_samples(batch), next(num_read)) for batch in whole)
        for step, parts in enumerate(assignment.group(pair for pair in counted if pair[1] > 0), first_step):
            sizes = tuple(num_samples for _, num_samples, _ in parts)
            if self._indices is not None:
                self._indices.put_together(step, parts[-1][2], is_skipped=step < first_step + skip)
            plan = assignment.plan(step, sizes)
            self._trail.add(step, [part for part, *_ in parts])
            if step >= first_step + skip:
                if assignment.world_size > 1 and step == first_step + skip:
                    plan.digest = digest([part for part, *_ in parts])
                for micro in plan.micro_batches:
                    micro.samples = _positions(first_sample, sizes, micro)
                yield (
                    plan,
                    [cut(parts[m.part][0], m.rows, m.batch_samples) for m in plan.micro_batches],
                )
            first_sample += sum(sizes)
        self._trail.end()

    @property
    @override
    def is_told(self) -> bool:
        return self._indices is not None and self._indices.is_told

    @override
    def taken(self, step: int) -> None:
        if self._indices is not None:
            self._indices.taken(step)

    @override
    def ended(self) -> None:
        if self._indices is not None:
            self._indices.ended()

    @property
    @override
    def held(self) -> set[int]:
        if self._indices is not None:
            return self._indices.held
        return {id(generator) for item in self._stateful for generator in generators_within(item).values()}

    @override
    def compared(self) -> str | None:
        if self._indices is not None:
            return self._indices.compared()
        # A worker reads a stream ahead, in a copy, so its state here says nothing. Other iterables
        # are read as the loop asks, in the same way on every rank. Generators deeper inside are not
        # compared: a library may have one that draws no samples, for example for retry delays.
        if self._reader is not None:
            return None
        if self._has_state:
            return digest(take_state(self._batches))
        own = [take_state(generator) for item in self._stateful for generator in generators_of(item).values()]
        return digest(own) if own else None

    @override
    def state(self, step: int | None) -> Any:
        trail = self._trail.behind(step)
        if self._reader is not None:
            # Empty batches are skipped, so the batches of a step are known only once they are read.
            return {"reader": self._reader.state(step), "trail": trail}
        if self._indices is not None:
            return {"indices": self._indices.state(step), "trail": trail}
        return {"begin": list(map(take_state, self._stateful)) if step is None else self._at_begin, "trail": trail}

    @override
    def load_state(self, state: Any) -> None:
        self._trail.load(state["trail"])
        if "reader" in state and self._reader is not None:
            self._reader.load_state(state["reader"])
        elif self._indices is not None:
            self._indices.load_state(state["indices"])
        else:
            for item, item_state in zip(self._stateful, state["begin"], strict=True):
                put_state(item, item_state)
            self._is_resumed = self._has_state

    def _whole(self, first_step: int, epoch: int, is_resumed: bool) -> Iterator[Any]:
        assignment, batches = self._assignment, self._batches
        samplers = samplers_of(batches) if isinstance(batches, DataLoader) else [getattr(batches, "sampler", None)]
        if self._pool is not None and self._indices is not None:
            set_epoch(epoch, batches)
            yield from self._pool.run(self._requests(first_step, epoch, self._indices))
            return
        set_epoch(epoch, batches, getattr(batches, "dataset", None), *samplers)
        if self._reader is not None:
            yield from self._reader.read(batches, first_step, epoch)  # type: ignore[arg-type]
            return
        assignment.reseed(Purpose.SAMPLER, epoch)
        iterator = iter(batches)
        for number in itertools.count():
            assignment.reseed(Purpose.FETCH, *self._key(first_step, number))
            try:
                batch = next(iterator, _END)
                if batch is _END and is_resumed and number == 0:
                    # A state taken after a pass may mean the end of that pass rather than the
                    # beginning of the next.
                    iterator = iter(batches)
                    batch = next(iterator, _END)
            except Exception as error:
                raise SampleErrors(batches, assignment.rank, is_ready=True).read(error, number, Purpose.FETCH) from error
            if batch is _END:
                return
            yield batch

    def _requests(self, first_step: int, epoch: int, indices: Indices) -> Iterator[Request]:
        for number, index in enumerate(indices.draw(epoch, first_step)):
            yield Request(Purpose.FETCH, (self._assignment.loader, *self._key(first_step, number)), index, epoch)

    def _key(self, first_step: int, number: int) -> tuple[int, int, int]:
        """Returns the stream key of a batch of this pass: its step, and a number after the numbers
        of the shards."""
        steps, part = divmod(number, self._assignment.accumulate)
        return first_step + steps, self._assignment.whole, part

    @override
    def num_steps(self) -> int:
        return self._assignment.num_steps(len(self._batches))  # type: ignore[arg-type]

    @override
    def describe(self) -> list[str]:
        return [f"ready batches of {type(self._batches).__name__}", *lengths(("global batches", self._batches))]


def choose_source(batches: Iterable[Any], assignment: ShardAssignment) -> Source:
    """Returns the source for an iterable passed to ``prepare``.

    Raises:
        DataError: the iterable is already split over processes, or can be iterated only once.
    """
    check_batches(batches, "prepare()", "epoch")
    if not is_torch_loader(batches) or (batches.batch_size is None and batches.batch_sampler is None):
        return ReadySource(batches, assignment)
    if isinstance(batches.dataset, IterableDataset):
        return StreamSource(batches, assignment)
    return SampleSource(batches, assignment)
