"""The samples of a DataLoader over a map-style dataset, and the indices from its sampler.

::

    Indices.draw           one list of indices per global batch, in a random stream per draw
      | group              ``accumulate`` global batches make a step
      | assignment.plan    rows of each shard, and the shards of this rank
      v
    Request(key, indices)  one per micro-batch -> FetchPool (workers or this process) -> samples

The sampler runs on every rank, from the same random streams, so that no indices are sent. Each rank
fetches its own shards only. Requests are made ahead of the loop: ``SamplerRewind`` hides that from
the samplers.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from typing_extensions import override

from lockstep._base.digest import digest
from lockstep._base.stopping import say
from lockstep._data.assignment import ShardAssignment
from lockstep._data.fetch import FetchPool, Request, choose_fetcher
from lockstep._data.memory import Memory, Moment
from lockstep._data.sampler_rewind import SamplerRewind
from lockstep._data.source import Source, StepData, lengths
from lockstep._data.streams import Purpose, reseed
from lockstep._data.torch_loader import samplers_of, set_epoch
from lockstep._data.trail import Trail, other_indices
from lockstep._plan.shards import StepPlan, shard_slice

_DRAW_ONCE = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
_BY_LENGTH = (RandomSampler, SequentialSampler)
"""Samplers whose indices depend on nothing that the script can change, except their generators and
lengths."""
_END = object()


class Indices:
    """The indices from the sampler or batch sampler of a loader.

    Args:
        loader: the user's loader.
        sampler: its sampler or its batch sampler.
        assignment: determines the random streams of the draws.
    """

    def __init__(self, loader: DataLoader[Any], sampler: Iterable[Any], assignment: ShardAssignment) -> None:
        self._loader = loader
        self._sampler = sampler
        self._are_batches = sampler is loader.batch_sampler
        self._assignment = assignment
        # The batch sampler's own sampler: if the script made the batch sampler, loader.sampler is
        # another one.
        self.draws_once = type(sampler) is BatchSampler and type(sampler.sampler) in _DRAW_ONCE
        """Whether the samplers draw from the process's generators only before their first index.
        Later draws then need no stream."""
        self._speaks = assignment.rank == 0 or loader.num_workers == 0
        self._memory = Memory(loader)
        self._drawn: SamplerRewind | None = None
        """The draws of the newest pass; None: there was none, or the samplers remember nothing."""
        self._first_step = 1
        """The first step of the current pass."""
        self._at_begin: Any = None
        """The state before the first index of the current pass was drawn, from which a resumed run
        draws the pass again."""
        self._resumed: Any = None
        """The state from which the next pass is drawn, in a run that resumes."""
        self._restored: Moment | None = None
        """The memory of the samplers when that state was restored."""
        self._changed: tuple[int, Any] | None = None
        """The step after which that run was interrupted within the pass, and the state of the
        samplers then; None: it was interrupted between passes."""
        self._now: Moment | None = None
        """In a resumed pass, the state of generators that other loaders have also drawn from; None:
        no generator is shared."""

    @property
    def is_told(self) -> bool:
        """Whether the source must know which steps the loop takes, since the samplers have
        memory."""
        return not self._memory.is_empty

    def draw(self, epoch: int, first_step: int) -> Iterator[Any]:
        """Yields the indices of a pass: of each batch that is not empty, or of each item if the
        loader makes no batches."""
        assignment, memory = self._assignment, self._memory
        self._first_step = first_step
        resumed, self._resumed = self._resumed, None
        if resumed is not None and self._restored is not None:
            now = memory.take()
            # Another loader that shares the generator has drawn from it, or was restored, since.
            if memory.is_drawn_between(self._restored, now):
                self._now = now
                memory.load_state(resumed)
            # The script has repeated its code from before the pass, and may have changed the
            # samplers.
            elif self._changed is not None:
                memory.load_state(resumed)
        if hasattr(self._loader.dataset, "set_epoch"):
            # Without the loader: two loaders may share the dataset, which must not depend on whose
            # pass began last.
            reseed(assignment.seed, Purpose.SET_EPOCH, epoch)
        set_epoch(epoch, self._loader.dataset, *samplers_of(self._loader))
        self._drawn = drawn = SamplerRewind(memory, self._drawn, self._warn) if self.is_told else None
        self._at_begin = memory.state()
        # Also before the first draw: iter() of a RandomSampler draws its permutation.
        assignment.reseed(Purpose.SAMPLER, epoch, 0)
        iterator: Iterator[Any] = iter(())

        def first() -> Any:
            nonlocal iterator
            iterator = iter(self._sampler)
            item = next(iterator, _END)
            if item is _END and resumed is not None:
                # A state taken after a pass may mean the end of that pass rather than the beginning
                # of the next.
                iterator = iter(self._sampler)
                item = next(iterator, _END)
            return item

        def later() -> Any:
            return next(iterator, _END)

        for number in itertools.count():
            if number and not self.draws_once:
                assignment.reseed(Purpose.SAMPLER, epoch, number)
            if drawn is not None:
                item = drawn.draw(later if number else first)
            elif number:  # ``later`` without the call: this runs in every step of most loaders
                item = next(iterator, _END)
            else:
                item = first()
            if item is _END:
                if drawn is not None:
                    drawn.note_end()
                return
            if not self._are_batches:
                yield item
            elif len(item):
                yield copy.copy(item)  # a batch sampler may fill one list again and again

    def put_together(self, step: int, count: int | None = None, *, is_skipped: bool = False) -> None:
        """Notes that a step consists of the draws up to ``count``, by default the newest.
        ``is_skipped``: the step was taken before the run was interrupted."""
        if self._drawn is not None:
            self._drawn.put_together(step, count)
        if self._changed is not None and step >= self._changed[0]:
            (_, state), self._changed = self._changed, None
            # The script changed attributes during the pass, and does not repeat that: skipped steps
            # do not run. So the changes are applied here, at the step after which they were saved.
            if self._drawn is None:
                self._memory.load_attributes(state)
            elif count in (None, self._drawn.count):  # otherwise draws ahead have changed them, too
                self._drawn.change(functools.partial(self._memory.load_attributes, state))
        if self._drawn is None:
            return
        if self._now is not None and not is_skipped:
            now, self._now = self._now, None
            self._drawn.rejoin(now)

    def taken(self, step: int) -> None:
        """Notes that the loop has taken a step, as ``Source.taken``."""
        if self._drawn is not None:
            self._drawn.taken(step)

    def ended(self) -> None:
        """Notes that the loop has finished, as ``Source.ended``."""
        if self._drawn is not None:
            self._drawn.ended()

    def _warn(self, changed: str) -> None:
        """Warns once of a change that does not reach indices drawn ahead. (Without workers any one
        process may draw ahead, so every rank may warn.)"""
        if self._speaks:
            say(
                f"WARNING: the script changed {changed} during a pass, after indices were drawn ahead of the loop. The "
                "change does not affect these indices, so the order depends on num_workers and on the number of processes. "
                "Change samplers between passes, or in a method set_epoch(epoch), which is called before each."
            )
        self._speaks = False

    @property
    def held(self) -> set[int]:
        """The ids of the objects whose state is in checkpoints, as ``Source.held``."""
        return self._memory.held

    def compared(self) -> str | None:
        """Returns the digest of the samplers' memory, as ``Source.compared``."""
        return digest(self._memory.compared()) if self.is_told else None

    def state(self, step: int | None) -> Any:
        """Returns the state from which to resume, as ``Source.state``."""
        if step is None:
            return {"begin": self._memory.state()}
        if step < self._first_step:  # the pass has begun, but no step was taken
            return {"begin": self._at_begin}
        return {"begin": self._at_begin, "step": step, "now": self._memory.state()}

    def load_state(self, state: Any) -> None:
        """Resumes from a state, as ``Source.load_state``."""
        self._resumed = state["begin"]
        self._changed = (state["step"], state["now"]) if "now" in state else None
        self._memory.load_state(self._resumed)
        self._restored = self._memory.take()


class SampleSource(Source):
    """The source for a DataLoader over a map-style dataset."""

    reads_all = False

    def __init__(self, loader: DataLoader[Any], assignment: ShardAssignment) -> None:
        self._loader = loader
        self._assignment = assignment
        self._batch_sampler: Iterable[Sequence[Any]] = loader.batch_sampler  # type: ignore[assignment]
        self._indices = Indices(loader, self._batch_sampler, assignment)
        fetcher = choose_fetcher(assignment.seed, loader, assignment.rank, by_row=assignment.by_row)
        self._pool = FetchPool(fetcher, loader)
        self._trail: Trail | None = None
        """The trail of the indices; None: their order follows from the run's seed, the length and
        the generators alone, so it cannot differ in a resumed pass."""
        own: Iterable[Any] = self._batch_sampler
        if type(own) is BatchSampler:
            own = own.sampler
        if not (self._indices.draws_once and type(own) in _BY_LENGTH):
            self._trail = Trail(own, is_compared=not assignment.allows_other_data, refusal=other_indices)

    @override
    def steps(self, first_step: int, epoch: int, skip: int = 0, *, compared: bool = False) -> Iterator[StepData]:
        assignment = self._assignment
        plans: deque[StepPlan] = deque()
        is_shared, by_row = assignment.world_size > 1, assignment.by_row

        trail = self._trail
        if trail is not None:
            trail.begin(first_step, skip)

        def requests() -> Iterator[Request]:
            is_told = self._indices.is_told
            for step, batches in enumerate(assignment.group(self._indices.draw(epoch, first_step)), first_step):
                is_skipped = step < first_step + skip
                if is_told or is_skipped:
                    self._indices.put_together(step, is_skipped=is_skipped)
                if trail is not None:
                    trail.add(step, digest(batches))
                if is_skipped:
                    continue
                plan = assignment.plan(step, tuple(map(len, batches)))
                plans.append(plan)
                if is_shared and step == first_step + skip:
                    plan.digest = digest(batches)
                    # All ranks fetch the first shard, which belongs to rank 0, and compare digests:
                    # equal indices into different datasets would not be noticed otherwise.
                    if compared and assignment.rank > 0:
                        samples = batches[0][shard_slice(0, len(batches[0]), assignment.num_shards)]
                        yield Request(Purpose.FETCH, (assignment.loader, step, 0, 0), samples, epoch)
                for micro in plan.micro_batches:
                    micro.samples = batches[micro.part][micro.rows]
                    key = (assignment.loader, step, micro.rows.start if by_row else micro.shard, micro.part)
                    yield Request(Purpose.FETCH, key, micro.samples, epoch)
            if trail is not None:
                trail.end()

        data: list[Any] = []
        for number, fetched in enumerate(self._pool.run(requests())):
            if compared and number == 0:
                plans[0].digest = digest([plans[0].digest, fetched])
                if assignment.rank > 0:
                    continue
            while not plans[0].micro_batches:
                yield plans.popleft(), []
            data.append(fetched)
            if len(data) == len(plans[0].micro_batches):
                yield plans.popleft(), data
                data = []
        # The last steps of the pass may have no samples for this process. It takes part in them all
        # the same, since gradients are summed over all ranks.
        for plan in plans:
            yield plan, []

    @property
    @override
    def is_told(self) -> bool:
        return self._indices.is_told

    @override
    def taken(self, step: int) -> None:
        self._indices.taken(step)

    @override
    def ended(self) -> None:
        self._indices.ended()

    @property
    @override
    def held(self) -> set[int]:
        return self._indices.held

    @override
    def compared(self) -> str | None:
        return self._indices.compared()

    @override
    def state(self, step: int | None) -> Any:
        return {"indices": self._indices.state(step), "trail": None if self._trail is None else self._trail.behind(step)}

    @override
    def load_state(self, state: Any) -> None:
        self._indices.load_state(state["indices"])
        if self._trail is not None:
            self._trail.load(state["trail"])

    @override
    def num_steps(self) -> int:
        return self._assignment.num_steps(len(self._batch_sampler))  # type: ignore[arg-type]

    @override
    def describe(self) -> list[str]:
        lines = [
            f"samples of {type(self._loader.dataset).__name__}",
            f"sampler {type(self._loader.sampler).__name__}, batch sampler {type(self._batch_sampler).__name__}",
            f"batch_size={self._loader.batch_size}, drop_last={self._loader.drop_last}",
        ]
        return lines + lengths(("data set", self._loader.dataset), ("global batches", self._batch_sampler))

    @override
    def describe_samples(self) -> list[str]:
        dataset = self._loader.dataset
        if type(dataset) is not Subset:
            return []
        # For example a random split, which each launch draws again.
        return [f"indices of the subset with the digest {digest(_as_array(dataset.indices))[:8]}"]


def _as_array(indices: Any) -> Any:
    """Returns integers as one array, which is fast to digest, and other indices as a list."""
    try:
        return numpy.asarray(indices, dtype=numpy.int64)
    except (TypeError, ValueError):
        return list(indices)
