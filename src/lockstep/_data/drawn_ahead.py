"""Drawing indices ahead of the loop without the script, or the next pass, noticing.

Loader workers are sent indices ahead, and a process without samples in a step goes on to the next
step that has some. How far ahead depends on the numbers of workers and processes, and so would
whatever a sampler remembers: where its generator stands, its position. So this is kept behind each
draw. Between two draws the samplers remember what they had behind the step that the loop has taken,
as if nothing had been drawn ahead: whenever and however the pass ends, they are where the next one
belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from lockstep._base.errors import DataError
from lockstep._data.memory import Content, Memory, Moment

T = TypeVar("T")


class _Left(NamedTuple):
    """What a pass that was left early has drawn ahead for good."""

    contents: list[Content]
    """Of objects that could not be put back."""
    first: Moment | None
    """Behind the first draw of the pass, if a sampler with a ``state_dict()`` remembers something
    that is not seen."""


class DrawnAhead:
    """The draws of a pass, and what a loader's samplers remembered behind each.

    Args:
        before: those of the pass before.
        warns: is called once with what the script has changed while indices lay ahead: a
            description.
    """

    def __init__(self, memory: Memory, before: DrawnAhead | None = None, warns: Callable[[str], None] | None = None) -> None:
        self._memory = memory
        self._warns = warns
        self._num_items: int | None = None
        """Draws that have given indices, once it is known that there are no more."""
        self._left = None if before is None else before._end()
        self._first: Moment | None = None
        """Behind the first draw."""
        self.count = 0
        """Draws so far."""
        self._shown = 0
        """The draw behind which the samplers are now."""
        self._behind: dict[int, Moment] = {}
        """Behind each draw that the loop may still be taken to, but for the newest if nothing was
        drawn since."""
        self._newest: Moment | None = None
        """Before the newest draw, until the loop takes the step: only the sampler has changed
        anything since."""
        self._draws: dict[int, int] = {}
        """By step that has been put together, the number of draws until it was."""
        memory.begin()

    def draw(self, draw: Callable[[], T]) -> T:
        """Draw once.

        Raises:
            DataError: the pass before was left early, with more indices drawn than its steps had,
                and this pass goes on from there.
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
        """The newest draw has given nothing: the pass has no more indices."""
        self._num_items = self.count - 1

    def _note(self) -> Moment:
        """Note what the samplers remember behind the newest draw."""
        now = self._memory.take()
        if self._newest is not None:
            self._memory.note_draw(self._newest, now)
        self._behind[self.count] = self._newest = now
        return now

    def put_together(self, step: int, count: int | None = None) -> None:
        """A step consists of the draws up to ``count``, the newest."""
        self._draws[step] = self.count if count is None else count

    def taken(self, step: int) -> None:
        """The loop has taken a step, or has ended with the error of the step that it asked for."""
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
        """The loop has run to its end."""
        self._show(self.count)

    def rejoin(self, now: Moment) -> None:
        """Let the generators go on from ``now``: a pass has been drawn again up to where it was
        interrupted, and other loaders have drawn from its generators since it began.

        Raises:
            DataError: the samplers draw as they go, so that what they drew in between cannot be
                known.
        """
        self._note()
        memory, moments = self._memory, [self._behind[number] for number in range(1, self.count + 1)]
        # only at the beginning
        if not any(memory.is_drawn_between(moments[0], moment) for moment in moments):
            memory.put_generators(now, moments)
        elif all(memory.is_drawn_between(moment, now) for moment in moments):
            raise DataError(
                "a loader's samplers draw indices as they go, from a generator that another loader draws from, too, so a run "
                "cannot resume within their passes: give each loader a generator of its own"
            )

    def change(self, put: Callable[[], None]) -> None:
        """Have something changed that the script had changed behind the newest draw."""
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
        """Take over what the script, or another loader, has changed since the last draw."""
        ahead = [moment for number, moment in self._behind.items() if number > self._shown]
        conflicts, changed = self._memory.merge(self._behind[self._shown], ahead)
        if conflicts:
            raise DataError(
                f"{' and '.join(conflicts)} was changed, or drawn from, during a pass of a loader whose indices had been drawn "
                "from it already, ahead of the loop: what the samplers draw would depend on the number of loader workers or "
                "processes. Does the script or another loader use the same generator? Give each loader one of its own: "
                "generator=torch.Generator().manual_seed(...)"
            )
        has_indices_ahead = self._shown < (self.count if self._num_items is None else self._num_items)
        if changed and has_indices_ahead and self._warns is not None:
            self._warns(" and ".join(changed))
            self._warns = None

    def _end(self) -> _Left | None:
        """How the pass was left; None: with no more drawn than the loop has taken."""
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
                f"{' and '.join(lost)}: a sampler goes on from there in this pass, but the pass before was left early, and "
                "indices had been drawn ahead of it, which cannot be undone. So this pass would depend on the number of "
                "loader workers or processes. Let the sampler keep its place in attributes that are numbers (self.position = "
                "...), or begin each pass at its beginning, or let passes end by its length rather than by break."
            )
