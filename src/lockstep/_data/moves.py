"""The blocks of shards of every step, as loaders plan ahead of the loop."""

from __future__ import annotations

from lockstep._plan.blocks import Blocks


class Moves:
    """Which blocks the steps have: those of the newest move, from its first step on, and the older
    ones before.

    Steps are planned when their samples are requested, for workers many steps before they are
    taken. So a move begins with a step that no rank has planned yet. All ranks must make the same
    calls, between the same steps.

    Args:
        blocks: of the first steps.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.newest = blocks
        """The blocks of the newest move."""
        self.is_pending = False
        """Whether that is yet to come into force."""
        self.first = 0
        """Its first step."""
        self._older = blocks
        self._planned = 0

    @property
    def in_force(self) -> Blocks:
        """The blocks of the current step."""
        return self._older if self.is_pending else self.newest

    def at(self, step: int) -> Blocks:
        """The blocks of a step that is being planned."""
        self._planned = max(self._planned, step)
        return self.newest if step >= self.first else self._older

    def planned_until(self, step: int) -> int:
        """The last step that was planned on this rank. ``step``: the current one."""
        return max(self._planned, step)

    def move(self, first: int, blocks: Blocks) -> None:
        """Have these blocks from the step ``first`` on, which no rank has planned yet. The move
        before must be in force."""
        assert not self.is_pending
        self._older, self.newest, self.first, self.is_pending = self.newest, blocks, first, True

    def settle(self, step: int) -> None:
        """The newest move is in force for what follows this step: its first step is the next, or no
        pass is under way, so that nothing is planned."""
        self.is_pending = False
        self.first = min(self.first, step + 1)
