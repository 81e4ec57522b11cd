"""Reading a streamed data set: every rank reads the whole stream, in one process, and collates its
own part."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from lockstep._base.digest import digest
from lockstep._data.changed_samples import ChangedSamples, definition_of
from lockstep._data.culprit import Culprit
from lockstep._data.fetch import from_workers, single_threaded, worker_loader
from lockstep._data.states import generators_within, has_state, put_state, take_state
from lockstep._data.streams import Purpose, reseed
from lockstep._data.torch_loader import USUAL_PREFETCH, set_epoch
from lockstep._data.trail import MAX_STEPS_AHEAD, extend, other_samples, say_state_is_incomplete

_END = object()


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far a pass was read, behind a step."""

    step: int
    num_read: int
    """Samples (or ready batches) of the pass."""
    trail: str
    """See ``trail.extend``."""
    own: Any
    """The state of the data set; None: it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """One pass over the stream."""

    number: int
    first: int
    """Its first step."""
    skip: int
    """Steps of an earlier launch."""
    trail: str | None = None
    """Their trail; None: it need not be compared."""
    before: _Mark | None = None
    """Where a data set with a state was before the last of them."""

    @property
    def last_skipped(self) -> int:
        return self.first + self.skip - 1


@dataclass(frozen=True, slots=True)
class _Over:
    """The pass is over, with the data set in this state."""

    own: Any


@dataclass(frozen=True, slots=True)
class _OtherSamples:
    """What was read again is not what an earlier launch had read. ``is_state``: it was behind a
    state of the data set, and the whole pass is read again."""

    is_state: bool


_Groups = Generator[tuple[_Mark, list[Any], int], None, None]


def _skip_to(step: int, mark: _Mark, groups: _Groups) -> _Mark | None:
    """Read behind ``mark`` as far as ``step``. Returns where that ends; None: the pass has not so
    many steps."""
    while mark.step < step:
        found = next(groups, None)
        if found is None:
            return None
        mark = found[0]
    return mark


def _as_dict(mark: _Mark) -> dict[str, Any]:
    return {"num_read": mark.num_read, "trail": mark.trail, "own": mark.own}


@contextlib.contextmanager
def _as_without_workers() -> Iterator[None]:
    """Inside, ``get_worker_info()`` is None, as in the training process: whoever reads a whole
    stream reads it alone, and the order must not depend on where. (Hugging Face's streams shuffle
    otherwise in a worker, also in an only one.)"""
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info


class StreamReader(IterableDataset[Any]):
    """Reads the stream of a DataLoader over an ``IterableDataset``; a subclass makes batches of the
    samples.

    A single loader worker reads, whatever ``num_workers`` says: several would each read the whole
    stream.

    A resumed pass goes on behind the steps of an earlier launch only if it is the same stream. A
    data set with a state is put back to where it was *before* the last of these steps, whose
    samples are read again: if they are others, the state leaves something out, such as a shuffle
    buffer. Then, as without a state, all steps are read again from the beginning of the pass.

    Args:
        loader: the user's.
        seed: the run's.
        purpose: that of the random streams in which samples are read.
        key: the loader and the part in the keys of those streams, around the number of the batch.
        rank: this process's, for error messages.
        group: how many batches are yielded together, under one number.
        is_compared: whether what is read again must be what was read before.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        seed: int,
        purpose: Purpose,
        key: tuple[int, int],
        rank: int,
        group: int = 1,
        is_compared: bool = True,
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
        """How many groups count as one batch that the worker prepares ahead."""
        self.leaves_marks = True
        """Whether ``state`` may ask how far it has read."""
        self._rank = rank
        self._group = group
        self._is_compared = is_compared
        self._pass = _Pass(number=0, first=1, skip=0)
        self._has_state = has_state(loader.dataset)
        self._marks: dict[int, _Mark] = {}
        """By step."""
        self._at_begin: Any = None
        """How to come to the beginning of the pass: see ``_come_to_begin``."""
        self._ended: Any = None
        """How the last pass ended, if that was in this process and the data set has a state."""
        self._resumed: Any = None

    def state(self, step: int | None) -> Any:
        """The state from which to resume after ``step`` of the current pass; None: between two
        passes. Without marks, from the beginning of the pass, whatever the data set has, and
        without a comparison."""
        if step is None:
            return self._resumed or {"begin": self._begin_now()}
        if not self.leaves_marks or step < self._pass.first:
            return {"begin": self._at_begin}
        read: dict[str, Any] = {"trail": self._marks[step].trail}
        if self._has_state and step > self._pass.first:
            read["before"] = _as_dict(self._marks[step - 1])
        return {"begin": self._at_begin, "read": read}

    def load_state(self, state: Any) -> None:
        """Resume from a state with the next ``read``."""
        self._resumed = state

    def read(self, like: DataLoader[Any], first: int, number: int, skip: int = 0) -> Iterator[Any]:
        """Read pass ``number``, with groups numbered from ``first``, without the first ``skip``
        groups. In one worker process if ``like`` has any workers, else in this process.

        Raises:
            MismatchError: the first ``skip`` groups are not those of the launch whose state was
                loaded.
        """
        this, self._marks = _Pass(number=number, first=first, skip=skip), {}
        if self._resumed is None:
            self._at_begin = self._begin_now()
        else:
            self._at_begin = self._resumed["begin"]
            # workers start with a copy of this process's data set
            put_state(self.dataset, self._at_begin["own"])
            if "read" in self._resumed:
                read = self._resumed["read"]
                before = _Mark(step=this.last_skipped - 1, **read["before"]) if "before" in read else None
                this = dataclasses.replace(this, trail=read["trail"] if self._is_compared else None, before=before)
                if before is not None:
                    self._marks[before.step] = before
        self._pass, self._ended = this, None
        mark, own, is_over = None, None, False
        try:
            for item in self._read(like):
                self._resumed = None  # it has reached the worker
                if isinstance(item, _OtherSamples):
                    if not item.is_state:
                        raise other_samples(self.dataset, skip)
                    if self._rank == 0:
                        say_state_is_incomplete(self.dataset, skip)
                    continue
                if isinstance(item, _Over):
                    own = item.own
                    continue
                mark, made = item
                own = mark.own
                if self.leaves_marks:
                    self._marks[mark.step] = mark
                    self._marks.pop(mark.step - MAX_STEPS_AHEAD, None)
                yield from made
            is_over = True
        finally:
            self._resumed = None
            if self._has_state and self.leaves_marks and like.num_workers == 0 and mark is not None:
                begin = _Mark(first - 1, 0, "", self._at_begin["own"])
                starts = (
                    [self._marks.get(mark.step - 1, begin)] if is_over else [self._marks.get(mark.step - 1, begin), begin]
                )
                self._ended = {
                    "number": number,
                    "step": mark.step,
                    "trail": mark.trail,
                    "is_over": is_over,
                    "starts": [dataclasses.asdict(start) for start in starts],
                }
            if (
                like.num_workers > 0
                and not self._has_state
                and own
                and digest(take_state(self.dataset)) == digest(self._at_begin["own"])
            ):
                # the worker's data set was a copy, and nothing else has drawn from this one
                put_state(self.dataset, own)

    def _begin_now(self) -> Any:
        return {"own": take_state(self.dataset), "ended": self._ended}

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

    def __iter__(self) -> Iterator[tuple[_Mark, list[Any]] | _OtherSamples | _Over]:
        this, is_resumed = self._pass, self._resumed is not None
        begin = _Mark(this.first - 1, 0, "", None)
        for start in (begin,) if this.before is None else (this.before, begin):
            is_exact = False
            if start is not begin:
                put_state(self.dataset, start.own)
            elif is_resumed:
                is_exact = self._come_to_begin()
            groups = self._groups(this.number, start, may_have_ended=is_resumed and not is_exact)
            mark = _skip_to(this.last_skipped, start, groups)
            if this.trail is None or (mark is not None and mark.trail == this.trail):
                break
            yield _OtherSamples(is_state=start is not begin)
        if mark is None:
            return
        if mark.step >= this.first:
            yield mark, []
        for mark, parts, first_sample in groups:
            yield mark, list(self.make(mark.step, parts, first_sample))
        if not self._has_state:  # it may have made its generators in this pass
            yield _Over(take_state(self.dataset))

    def _come_to_begin(self) -> bool:
        """Leave the data set as it was at the beginning of the pass. Returns whether it surely is.

        Behind a pass, its own state says too little: some data sets go on from there with the next
        pass, others start over. So the last step of that pass is read again, and the pass is left
        as it was then. If that step has other samples now, the pass is read again from its
        beginning, unless it had come to its end. At worst, the data set's own state must do."""
        own, ended = self._at_begin["own"], self._at_begin["ended"]
        is_exact = False
        for start in () if ended is None else (_Mark(**start) for start in ended["starts"]):
            put_state(self.dataset, start.own)
            set_epoch(ended["number"], self.dataset)
            groups = self._groups(ended["number"], start, may_have_ended=True)
            mark = _skip_to(ended["step"], start, groups)
            is_exact = mark is not None and mark.trail == ended["trail"] and not (ended["is_over"] and any(groups))
            groups.close()
            set_epoch(self._pass.number, self.dataset)
            if is_exact:
                break
        else:
            put_state(self.dataset, own)
        return is_exact

    def _groups(self, number_of_pass: int, mark: _Mark, *, may_have_ended: bool) -> _Groups:
        """The groups behind ``mark``, where the data set is now: how far each has read, its
        batches, and the number of samples before it. ``may_have_ended``: a state of the data set
        may mean the end of the pass before."""
        loader, part = self.key
        samples, num_read, trail, begin = self._begin(number_of_pass), mark.num_read, mark.trail, mark.step
        is_copy, draws = not self._has_state and get_worker_info() is not None, False
        for batch in itertools.count(mark.step + 1):
            parts: list[Any] = []
            first_sample = num_read
            for number in range(self._group):
                # Every rank reads every sample, from the same random stream per batch.
                reseed(self._seed, self._purpose, loader, batch, part, number)
                read = self._take(samples, num_read, batch)
                if not read and may_have_ended and self._has_state and num_read == 0 == number:
                    samples = self._begin(number_of_pass)
                    reseed(self._seed, self._purpose, loader, batch, part, number)
                    read = self._take(samples, num_read, batch)
                if not read or (self._drop_last and len(read) < (self._batch_size or 1)):
                    break
                num_read += len(read)
                parts.append(read if self._batch_size is not None else read[0])
            if parts:
                if is_copy and batch == begin + 1:  # some make their generators in their first pass
                    draws = bool(generators_within(self.dataset))
                is_kept = draws or (self._has_state and self.leaves_marks)
                trail = extend(trail, parts) if self.leaves_marks else ""
                mark = _Mark(batch, num_read, trail, take_state(self.dataset) if is_kept else None)
                yield mark, parts, first_sample
            if len(parts) < self._group:
                return

    def _begin(self, number_of_pass: int) -> Iterator[Any]:
        reseed(self._seed, Purpose.SAMPLER, self.key[0], number_of_pass)
        with _as_without_workers():
            return iter(self.dataset)

    def _take(self, samples: Iterator[Any], num_read: int, batch: int) -> list[Any]:
        read: list[Any] = []
        try:
            with _as_without_workers():  # after an error, ``read`` has the samples before it
                read.extend(itertools.islice(samples, self._batch_size or 1))
        except Exception as error:
            raise self._culprit.read(error, num_read + len(read), self._purpose, batch) from error
        return read

    def collate(self, samples: Any, positions: Sequence[int], batch: int, shard: int | None = None) -> Any:
        """Apply the user's ``collate_fn`` to samples or a ready batch; ``positions`` in the pass
        are for error messages."""
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
