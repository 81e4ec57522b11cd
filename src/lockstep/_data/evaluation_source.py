"""The batches of an evaluation loader: complete, as on a single process, and assigned to the
processes one after another: batch b to rank b mod W."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lockstep._data.assignment import ShardAssignment
from lockstep._data.fetch import FetchPool, Request, choose_fetcher, single_threaded
from lockstep._data.memory import Memory
from lockstep._data.reader import StreamReader
from lockstep._data.sample_errors import SampleErrors
from lockstep._data.states import generators_within, put_state, take_state
from lockstep._data.streams import Purpose, reseed
from lockstep._data.torch_loader import check_batches, is_torch_loader
from lockstep._plan.shards import deal

FIRST_LOADER = 1 << 20
"""The number of the first evaluation loader, for random streams. Training loaders are numbered from
1."""

AssignedBatch = tuple[int, int | None, Callable[[], Any] | None]
"""A batch: its number, its number of samples if known, and a function that fetches it; None: it
belongs to another process."""

_BETWEEN, _REPLAY = 4, 2
"""Parts of the keys of random streams, in addition to 0 (fetching) and odd numbers (the passes over
a batch)."""


@dataclass(frozen=True, kw_only=True)
class EvaluationKey:
    """The identity of an evaluation within the run. Its random streams derive from this key. The
    key counts nothing per launch, so a resumed run repeats the same evaluations."""

    step: int
    """The number of steps taken before it."""
    number: int
    """The number of its loader among the loaders evaluated since that step, in the same epoch or
    section of the script."""
    repeat: int = 0
    """The number of earlier evaluations of that loader since then."""

    @property
    def loader(self) -> int:
        """The loader number for random streams."""
        return FIRST_LOADER + self.number


class _DealingReader(StreamReader):
    """A reader of the batches of a stream, which collates the batches of this process."""

    def __init__(self, loader: DataLoader[Any], assignment: ShardAssignment) -> None:
        super().__init__(loader, assignment.seed, Purpose.EVALUATE, (FIRST_LOADER, 0), assignment.rank)
        self._assignment = assignment
        self._ready = loader.batch_size is None
        self.leaves_marks = False
        self.items_ahead = assignment.world_size  # one of W batches has samples for this process

    def make(self, batch: int, parts: list[Any], first_sample: int) -> Iterator[tuple[int, int | None, Any]]:
        num_samples, data = 1 if self._ready else len(parts[0]), None
        if batch % self._assignment.world_size == self._assignment.rank:
            data = self.collate(parts[0], range(first_sample, first_sample + num_samples), batch)
        yield batch, None if self._ready else num_samples, data


class EvaluationSource:
    """The batches of an evaluation loader, for one evaluation.

    At its end, samplers and generators are put back to their states before it. So each evaluation
    begins at the same place as the first: a resumed run does not repeat the earlier ones.

    Args:
        held: the ids of objects whose state is in checkpoints. They are not put back, since a
            resumed run restores them. (A prepared loader may use the same generator.)

    Raises:
        DataError: the loader is already split over processes, or can be iterated only once.
    """

    def __init__(self, batches: Iterable[Any], assignment: ShardAssignment, held: Collection[int] = ()) -> None:
        check_batches(batches, "evaluate()", "evaluation")
        self._held = held
        self.batches = batches
        """The script's loader."""
        self._assignment = assignment
        self._pool: FetchPool | None = None
        self._reader: StreamReader | None = None
        if is_torch_loader(batches):
            if isinstance(batches.dataset, IterableDataset):
                self._reader = _DealingReader(batches, assignment)
            else:
                self._pool = FetchPool(choose_fetcher(assignment.seed, batches, assignment.rank), batches)

    def deal(self, evaluation: EvaluationKey) -> Generator[AssignedBatch]:
        """Returns a generator of all batches of one pass, in order. The batches of this process can
        be fetched in that order only, and some may be left out. The caller closes the generator
        when the evaluation ends."""
        if self._pool is not None:
            return self._deal_indexed(evaluation, self._pool)
        if self._reader is None:
            return self._deal_read(evaluation, self._read_ready(evaluation))
        self._reader.key = (evaluation.loader, 0)
        return self._deal_read(evaluation, self._reader.read(self.batches, 0, evaluation.step))  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Returns a context that puts the generators of the loader back at its end."""
        within = generators_within(self.batches).values()
        generators = [generator for generator in within if id(generator) not in self._held]
        states = list(map(take_state, generators))
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                put_state(generator, state)

    def reseed(self, evaluation: EvaluationKey, batch: int, turn: int) -> None:
        """Starts the random stream of a pass over a batch, numbered from 0."""
        self._reseed(evaluation, batch, 1 + 2 * turn)

    def reseed_between(self, evaluation: EvaluationKey, batch: int, turn: int) -> None:
        """Starts the random stream of the code after some passes over a batch, the same on every
        process. (With one shard there is one process, whose stream may continue.)"""
        if self._assignment.num_shards > 1:
            self._reseed(evaluation, batch, _BETWEEN + 2 * turn)

    def reseed_replay(self, evaluation: EvaluationKey) -> None:
        """Starts the random stream for updates of metrics."""
        self._reseed(evaluation, 0, _REPLAY)

    def _reseed(self, evaluation: EvaluationKey, batch: int, part: int) -> None:
        reseed(self._assignment.seed, Purpose.EVALUATE, evaluation.loader, batch, part)

    def _deal_indexed(self, evaluation: EvaluationKey, pool: FetchPool) -> Generator[AssignedBatch]:
        assignment, loader = self._assignment, self.batches
        assert isinstance(loader, DataLoader)
        reseed(assignment.seed, Purpose.SAMPLER, evaluation.loader, evaluation.step, evaluation.repeat)
        # All indices are drawn before the first batch, and the samplers put back immediately: code
        # in the loop may use the same generator, and must find it as on any number of processes.
        memory = Memory(loader)
        before = memory.take()
        # Copies, since a batch sampler may fill one list again and again.
        batches = list(loader.sampler if loader.batch_sampler is None else map(copy.copy, loader.batch_sampler))
        memory.note_draw(before, memory.take())
        memory.leave_out(self._held)
        memory.put(before)
        mine = deal(len(batches), assignment.rank, assignment.world_size)
        requests = (Request(Purpose.EVALUATE, (evaluation.loader, batch, 0), batches[batch]) for batch in mine)
        fetched = zip(mine, pool.run(requests), strict=True)
        for batch, indices in enumerate(batches):
            num_samples = None if loader.batch_sampler is None else len(indices)
            yield batch, num_samples, functools.partial(_find, fetched, batch) if batch in mine else None

    def _deal_read(
        self, evaluation: EvaluationKey, items: Iterator[tuple[int, int | None, Any]]
    ) -> Generator[AssignedBatch]:
        assignment = self._assignment
        with self._unchanged():
            for batch, num_samples, data in items:
                # Only one process has run the user's collate_fn, which may have drawn.
                self.reseed_between(evaluation, batch, 0)
                is_mine = batch % assignment.world_size == assignment.rank
                yield batch, num_samples, functools.partial(_same, data) if is_mine else None

    def _read_ready(self, evaluation: EvaluationKey) -> Iterator[tuple[int, int | None, Any]]:
        assignment = self._assignment
        reseed(assignment.seed, Purpose.SAMPLER, evaluation.loader, evaluation.step, evaluation.repeat)
        batches, one_thread = iter(self.batches), single_threaded()
        for batch in itertools.count():
            reseed(assignment.seed, Purpose.EVALUATE, evaluation.loader, batch, 0)
            try:
                with one_thread:
                    data = next(batches, _END)
            except Exception as error:
                raise SampleErrors(self.batches, assignment.rank, is_ready=True).read(
                    error, batch, Purpose.EVALUATE
                ) from error
            if data is _END:
                return
            yield batch, None, data


_END = object()


def _find(fetched: Iterator[tuple[int, Any]], batch: int) -> Any:
    # The script may leave batches out, which are skipped here.
    return next(data for number, data in fetched if number == batch)


def _same(data: Any) -> Any:
    return data
