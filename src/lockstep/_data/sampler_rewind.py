"""Draws indices ahead of the loop, without an effect on the script or the next pass.

Loader workers receive indices ahead, and a process without samples in a step continues to the next
step with some. How far ahead depends on the numbers of workers and processes. So would the memory
of a sampler: the state of its generator, its position. Two ranks that leave a pass by ``break``
would begin the next one with different indices.

So the memory is recorded after each draw. Between two draws, the samplers are put back to the
memory after the step that the loop has taken::

    draws           1     2     3     4     5      (for workers: two steps ahead of the loop)
    memory          m1    m2    m3    m4    m5
    loop has taken              ^ step 3: the script sees the samplers with m3
    next draw       put m5 back, draw 6, record m6, put m3 back
    break           the samplers have m3, as without workers: the next pass continues there

A change by the script in the meantime (a seed, a list) is merged into the later memories. That is
impossible for values that the draws ahead have changed, too: then an error names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from lockstep._base.errors import DataError
from lockstep._data.memory import Content, Memory, Moment

T = TypeVar("T")


class _Left(NamedTuple):
    """The draws of a pass that was left early which cannot be undone."""

    contents: list[Content]
    """The contents of objects that could not be put back."""
    first: Moment | None
    """The memory after the first draw of the pass, if a sampler with a ``state_dict()`` has hidden
    memory; None: no sampler has."""


class SamplerRewind:
    """The draws of a pass, and the memory of a loader's samplers after each.

    Args:
        before: the draws of the pass before.
        warns: a function that is called with a description of what the script has changed while
            indices were drawn ahead.
    """

    def __init__(
        self, memory: Memory, before: SamplerRewind | None = None, warns: Callable[[str], None] | None = None
    ) -> None:
        self._memory = memory
        self._warns = warns
        self._num_items: int | None = None
        """The number of draws that gave indices; None: there may be more."""
        self._left = None if before is None else before._end()
        self._first: Moment | None = None
        """The memory after the first draw."""
        self.count = 0
        """The number of draws so far."""
        self._shown = 0
        """The number of the draw after which the samplers are now."""
        self._behind: dict[int, Moment] = {}
        """The memory after each draw that the loop may still reach, except for the newest draw."""
        self._newest: Moment | None = None
        """The memory before the newest draw, until the loop takes its step. Only the sampler has
        changed anything since, so the difference is the effect of drawing."""
        self._draws: dict[int, int] = {}
        """The number of draws until each step was complete."""
        memory.begin()

    def draw(self, draw: Callable[[], T]) -> T:
        """Draws once.

        Raises:
            DataError: the pass before was left early after draws ahead, and this pass continues
                from them.
        """
        if self._shown != self.count:
            self._show(self.count)
        before = self._note()
        drawn = draw()
        self.count = self._shown = self.count + 1
        if self.count == 1:
            self._first = self._memory.take()
            if self._left is not None:
                self._check(self._left, before, self._first)
        return drawn

    def note_end(self) -> None:
        """Notes that the newest draw gave nothing: the pass has no more indices."""
        self._num_items = self.count - 1

    def _note(self) -> Moment:
        """Records the memory after the newest draw."""
        now = self._memory.take()
        if self._newest is not None:
            self._memory.note_draw(self._newest, now)
        self._behind[self.count] = self._newest = now
        return now

    def put_together(self, step: int, count: int | None = None) -> None:
        """Notes that a step consists of the draws up to ``count``, by default the newest."""
        self._draws[step] = self.count if count is None else count

    def taken(self, step: int) -> None:
        """Notes that the loop has taken a step, or received the error of the step that it
        requested."""
        count = self._draws.get(step, self.count)
        self._show(count)
        self._newest = None
        if count == self.count:
            self._behind.clear()
            self._draws.clear()
        else:
            self._behind = {number: moment for number, moment in self._behind.items() if number >= count}
            self._draws = {number: draws for number, draws in self._draws.items() if number >= step}

    def ended(self) -> None:
        """Notes that the loop has finished."""
        self._show(self.count)

    def rejoin(self, now: Moment) -> None:
        """Continues the generators from ``now``, after a pass was drawn again up to its
        interruption: other loaders had drawn from its generators, too.

        Raises:
            DataError: the samplers draw throughout the pass, so their draws cannot be separated
                from the other loaders'.
        """
        self._note()
        memory, moments = self._memory, [self._behind[number] for number in range(1, self.count + 1)]
        # A sampler that draws only before its first index: the generator after that belongs to
        # others.
        if not any(memory.is_drawn_between(moments[0], moment) for moment in moments):
            memory.put_generators(now, moments)
        elif all(memory.is_drawn_between(moment, now) for moment in moments):
            raise DataError(
                "a loader's sampler shares its generator with another loader and draws from it throughout the pass, so a run "
                "cannot resume within a pass. Give each loader a separate generator.",
                code="generator-shared",
            )

    def change(self, put: Callable[[], None]) -> None:
        """Applies a change that the script had made after the newest draw."""
        self._note()
        put()
        self._behind[self.count] = self._newest = self._memory.take()

    def _show(self, count: int) -> None:
        if count != self._shown:
            if self._shown == self.count:
                self._note()
            else:
                self._merge()
            self._memory.put(self._behind[count])
            self._shown = count

    def _merge(self) -> None:
        """Merges what the script, or another loader, has changed since the last draw."""
        ahead = [moment for number, moment in self._behind.items() if number > self._shown]
        conflicts, changed = self._memory.merge(self._behind[self._shown], ahead)
        if conflicts:
            raise DataError(
                f"{' and '.join(conflicts)} was changed, or drawn from, during a pass of a loader that had already drawn "
                "indices with it ahead of the loop, so indices would depend on the number of loader workers or processes. Give "
                "each loader a separate generator: generator=torch.Generator().manual_seed(...).",
                code="sampler-changed-ahead",
            )
        has_indices_ahead = self._shown < (self.count if self._num_items is None else self._num_items)
        if changed and has_indices_ahead and self._warns is not None:
            self._warns(" and ".join(changed))

    def _end(self) -> _Left | None:
        """Returns the draws ahead that cannot be undone; None: the loop has taken all draws."""
        if self._shown == self.count:
            return None
        shown, newest = self._behind[self._shown], self._behind[self.count]
        first = self._first if self._memory.has_reported(shown, newest) else None
        return _Left(self._memory.not_put_back(shown, newest), first)

    def _check(self, left: _Left, before: Moment, after: Moment) -> None:
        memory = self._memory
        lost = memory.gone_on(left.contents, before, after)
        if left.first is not None and left.first.reported != after.reported:
            lost += memory.reporting
        if lost:
            raise DataError(
                f"{' and '.join(lost)}: a sampler continues from there, but the pass before was left early after indices were "
                "drawn ahead, so this pass would depend on the number of loader workers or processes. Keep the sampler's place "
                "in attributes that are numbers (self.position = ...), or do not leave passes by break.",
                code="pass-left-early",
            )
