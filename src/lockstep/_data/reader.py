"""Reads a streamed dataset: every rank reads the whole stream, in one process, and collates its
part.

::

    groups       1        2        3        4          a group: the global batches of one step
    marks        m1       m2       m3       m4         samples read, trail, state of the dataset
    interrupted                    ^ step 3 was the last one
    resume       put the state of m2 back, read group 3 again, compare its trail with m3
                 equal: continue with group 4
                 different: the state is incomplete; read groups 1 to 3 again from the beginning
                 still different: the stream is not repeatable; MismatchError

Step 3 is read again, although it is done, because the state of a dataset may omit something (a
shuffle buffer). Only samples that are known already can show that.
"""

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
from lockstep._data.fetch import from_workers, single_threaded, worker_loader
from lockstep._data.sample_errors import SampleErrors
from lockstep._data.states import generators_within, has_state, put_state, take_state
from lockstep._data.streams import Purpose, reseed
from lockstep._data.torch_loader import USUAL_PREFETCH, set_epoch
from lockstep._data.trail import MAX_STEPS_AHEAD, extend, other_samples, say_state_is_incomplete

_END = object()


@dataclass(frozen=True, slots=True)
class _Mark:
    """The position in a pass after a step."""

    step: int
    num_read: int
    """The number of samples (or ready batches) of the pass so far."""
    trail: str
    """The trail of the pass, as from ``trail.extend``."""
    own: Any
    """The state of the dataset; None: it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """One pass over the stream."""

    number: int
    first: int
    """The first step of the pass."""
    skip: int
    """The number of steps that an earlier launch has taken."""
    trail: str | None = None
    """The trail of these steps; None: it need not be compared."""
    before: _Mark | None = None
    """The position of a dataset with a state before the last of these steps."""

    @property
    def last_skipped(self) -> int:
        return self.first + self.skip - 1


@dataclass(frozen=True, slots=True)
class _Over:
    """The end of the pass, with the state of the dataset."""

    own: Any


@dataclass(frozen=True, slots=True)
class _OtherSamples:
    """A difference between samples that were read again and the samples of an earlier launch.
    ``is_state``: they were read from a state of the dataset, and the whole pass is read again."""

    is_state: bool


_Groups = Generator[tuple[_Mark, list[Any], int], None, None]


def _skip_to(step: int, mark: _Mark, groups: _Groups) -> _Mark | None:
    """Reads from ``mark`` to ``step``. Returns the mark there; None: the pass has fewer steps."""
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
    """Returns a context in which ``get_worker_info()`` is None, as in the training process. One
    process reads the whole stream, and the order must not depend on which. (Hugging Face's streams
    shuffle differently in a worker, even if it is the only one.)"""
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info


class StreamReader(IterableDataset[Any]):
    """A reader of the stream of a DataLoader over an ``IterableDataset``. A subclass makes batches
    of the samples.

    One loader worker reads, for any ``num_workers`` above 0: several would each read the whole
    stream.

    A resumed pass continues after the steps of an earlier launch only if the stream is the same. A
    dataset with a state is put back to its state *before* the last of these steps, and the samples
    of that step are read again. If they differ, the state omits something, such as a shuffle
    buffer. Then, as without a state, all steps are read again from the beginning of the pass.

    Args:
        loader: the user's loader.
        seed: the seed of the run.
        purpose: the purpose of the random streams in which samples are read.
        key: the loader and the part in the keys of those streams, around the number of the batch.
        rank: the rank of this process, for error messages.
        group: the number of batches that are yielded together, under one number.
        is_compared: whether samples that are read again must be the same as before.
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
        self._culprit = SampleErrors(loader.dataset, rank, is_ready=loader.batch_size is None)
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
        """The number of groups that count as one batch that the worker prepares ahead."""
        self.leaves_marks = True
        """Whether marks are recorded, from which ``state`` takes the position."""
        self._rank = rank
        self._group = group
        self._is_compared = is_compared
        self._pass = _Pass(number=0, first=1, skip=0)
        self._has_state = has_state(loader.dataset)
        self._marks: dict[int, _Mark] = {}
        """The mark after each step."""
        self._at_begin: Any = None
        """The state for the beginning of the pass, as used by ``_come_to_begin``."""
        self._ended: Any = None
        """The end of the last pass, if this process has read it and the dataset has a state."""
        self._resumed: Any = None

    def state(self, step: int | None) -> Any:
        """Returns the state from which to resume after ``step`` of the current pass; None: between
        two passes. Without marks it is the beginning of the pass, without a comparison."""
        if step is None:
            return self._resumed or {"begin": self._begin_now()}
        if not self.leaves_marks or step < self._pass.first:
            return {"begin": self._at_begin}
        read: dict[str, Any] = {"trail": self._marks[step].trail}
        if self._has_state and step > self._pass.first:
            read["before"] = _as_dict(self._marks[step - 1])
        return {"begin": self._at_begin, "read": read}

    def load_state(self, state: Any) -> None:
        """Resumes from a state with the next ``read``."""
        self._resumed = state

    def read(self, like: DataLoader[Any], first: int, number: int, skip: int = 0) -> Iterator[Any]:
        """Reads pass ``number``, with groups numbered from ``first``, without the first ``skip``
        groups: in one worker process if ``like`` has workers, otherwise in this process.

        Raises:
            MismatchError: the first ``skip`` groups differ from the groups of the launch whose
                state was loaded.
        """
        this, self._marks = _Pass(number=number, first=first, skip=skip), {}
        if self._resumed is None:
            self._at_begin = self._begin_now()
        else:
            self._at_begin = self._resumed["begin"]
            # Workers start with a copy of this process's dataset.
            put_state(self.dataset, self._at_begin["own"])
            if "read" in self._resumed:
                read = self._resumed["read"]
                before = _Mark(step=this.last_skipped - 1, **read["before"]) if "before" in read else None
                this = dataclasses.replace(this, trail=read["trail"] if self._is_compared else None, before=before)
                if before is not None:
                    self._marks[before.step] = before
        self._pass, self._ended = this, None
        mark, own, has_finished = None, None, False
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
            has_finished = True
        finally:
            self._resumed = None
            if self._has_state and self.leaves_marks and like.num_workers == 0 and mark is not None:
                begin = _Mark(first - 1, 0, "", self._at_begin["own"])
                starts = (
                    [self._marks.get(mark.step - 1, begin)]
                    if has_finished
                    else [self._marks.get(mark.step - 1, begin), begin]
                )
                self._ended = {
                    "number": number,
                    "step": mark.step,
                    "trail": mark.trail,
                    "is_over": has_finished,
                    "starts": [dataclasses.asdict(start) for start in starts],
                }
            if (
                like.num_workers > 0
                and not self._has_state
                and own
                and digest(take_state(self.dataset)) == digest(self._at_begin["own"])
            ):
                # The worker's dataset was a copy, and nothing else has drawn from this one.
                put_state(self.dataset, own)

    def _begin_now(self) -> Any:
        return {"own": take_state(self.dataset), "ended": self._ended}

    def _read(self, like: DataLoader[Any]) -> Iterator[Any]:
        if like.num_workers > 0:
            # In an evaluation only one of W items has samples for this process, so W times as many
            # items are the same number of batches ahead.
            ahead = (like.prefetch_factor or USUAL_PREFETCH) * self.items_ahead
            # Not persistent: a persistent worker would not learn of the new pass.
            yield from from_workers(
                worker_loader(self, like, num_workers=1, persistent_workers=False, prefetch_factor=ahead)
            )
            return
        # As in a worker, with one thread. Entered for each item: the loop's body keeps its threads.
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
        # First from the state before the last step, and if that does not lead to the same samples,
        # from the beginning of the pass.
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
        """Puts the dataset into its state at the beginning of the pass. Returns whether that is
        certain.

        The state of a dataset after a pass is ambiguous: some datasets continue from it with the
        next pass, others start over. So the last step of the earlier pass is read again, and the
        pass is ended in the same way. If that step has other samples now, the pass is read again
        from its beginning, unless it was read to its end. As the last resort, the state of the
        dataset is used."""
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
        """Yields the groups after ``mark``, the present position of the dataset: the mark after
        each, its batches, and the number of samples before it. ``may_have_ended``: whether a state
        of the dataset may mean the end of the pass before."""
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
                # Nothing at all: the state was that of a finished pass, and iter() of the dataset
                # only ended it. The next iter() begins the next pass.
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
        """Applies the user's ``collate_fn`` to samples or a ready batch. ``positions``: the
        positions in the pass, for error messages."""
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
        """Yields the items for a group of batches.

        Args:
            batch: the number of the group.
            parts: the batches of the group: lists of samples, or ready batches.
            first_sample: the number of samples (or ready batches) of this pass before the group.
        """
