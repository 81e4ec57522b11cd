"""The indices that a loader's sampler gives, pass by pass, and where it stands."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lockstep.base.digest import digest
from lockstep.data.assignment import ShardAssignment
from lockstep.data.drawn_ahead import DrawnAhead
from lockstep.data.memory import Memory, Moment
from lockstep.data.streams import Purpose
from lockstep.data.torch_loader import samplers_of, set_epoch

_DRAW_ONCE = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
_END = object()


class Indices:
    """What the sampler or batch sampler of a loader gives.

    Args:
        loader: the user's.
        sampler: one of its two.
        assignment: says which random streams its draws have.
    """

    def __init__(self, loader: DataLoader[Any], sampler: Iterable[Any], assignment: ShardAssignment) -> None:
        self._loader = loader
        self._sampler = sampler
        self._assignment = assignment
        # These draw from the process's generators before their first index only, so no later draw needs a stream of its own.
        self._draws_once = type(sampler) is BatchSampler and type(loader.sampler) in _DRAW_ONCE
        self._memory = Memory(loader)
        self._drawn: DrawnAhead | None = None
        """The draws of the newest pass; None: there was none, or the samplers remember nothing."""
        self._at_begin: Any = None
        """The state before the first index of the current pass was drawn, from which a resumed run draws the pass again."""
        self._resumed: Any = None
        """The state from which the next pass is drawn, in a run that resumes."""
        self._now: Moment | None = None
        """In a pass that resumes: what others have left in the generators that it shares with them."""

    @property
    def is_told(self) -> bool:
        """Whether the source must be told which steps the loop takes, since the samplers remember something."""
        return not self._memory.is_empty

    def draw(self, epoch: int) -> Iterator[Any]:
        """The indices of a pass."""
        assignment, memory = self._assignment, self._memory
        resumed, self._resumed = self._resumed, None
        if resumed is not None and digest(memory.state()) != digest(resumed):  # others were given back the generator since
            self._now = memory.take()
            memory.load_state(resumed)
        set_epoch(epoch, self._loader.dataset, *samplers_of(self._loader))
        self._drawn = drawn = DrawnAhead(memory, self._drawn) if self.is_told else None
        self._at_begin = memory.state()
        assignment.reseed(Purpose.SAMPLER, epoch, 0)
        iterator: Iterator[Any] = iter(())

        def first() -> Any:
            nonlocal iterator
            iterator = iter(self._sampler)
            item = next(iterator, _END)
            if item is _END and resumed is not None:
                # A state taken after a pass may mean the end of that pass rather than the beginning of the next.
                iterator = iter(self._sampler)
                item = next(iterator, _END)
            return item

        def later() -> Any:
            return next(iterator, _END)

        for number in itertools.count():
            if number and not self._draws_once:
                assignment.reseed(Purpose.SAMPLER, epoch, number)
            draw = later if number else first
            item = draw() if drawn is None else drawn.draw(draw)
            if item is _END:
                return
            yield item

    def put_together(self, step: int, count: int | None = None, *, is_skipped: bool = False) -> None:
        """A step consists of what was drawn up to the draw ``count``, the newest. ``is_skipped``: it was taken before the run
        was interrupted."""
        if self._drawn is None:
            return
        self._drawn.put_together(step, count)
        if self._now is not None and not is_skipped:
            now, self._now = self._now, None
            self._drawn.rejoin(now)

    def taken(self, step: int) -> None:
        """See ``Source.taken``."""
        if self._drawn is not None:
            self._drawn.taken(step)

    def ended(self) -> None:
        """See ``Source.ended``."""
        if self._drawn is not None:
            self._drawn.ended()

    def state(self, step: int | None) -> Any:
        """See ``Source.state``."""
        return self._memory.state() if step is None else self._at_begin

    def load_state(self, state: Any) -> None:
        """See ``Source.load_state``."""
        self._resumed = state
        self._memory.load_state(state)
