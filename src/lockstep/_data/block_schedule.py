"""The blocks of shards of every step, as loaders plan ahead of the loop."""

from __future__ import annotations

from lockstep._plan.blocks import Blocks


class BlockSchedule:
    """The blocks of each step: the blocks of the newest move from its first step, and the older
    blocks before.

    Steps are planned when their samples are requested, for workers many steps before they are
    taken. So a move begins with a step that no rank has planned yet. All ranks must make the same
    calls, between the same steps.

    Args:
        blocks: the blocks of the first steps.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.newest = blocks
        """The blocks of the newest move."""
        self.is_pending = False
        """Whether the newest move is not in force yet."""
        self.first = 0
        """The first step of the newest move."""
        self._older = blocks
        self._planned = 0

    @property
    def in_force(self) -> Blocks:
        """The blocks of the current step."""
        return self._older if self.is_pending else self.newest

    def at(self, step: int) -> Blocks:
        """Returns the blocks of a step that is being planned."""
        self._planned = max(self._planned, step)
        return self.newest if step >= self.first else self._older

    def planned_until(self, step: int) -> int:
        """Returns the last step that was planned on this rank. ``step``: the current step."""
        return max(self._planned, step)

    def move(self, first: int, blocks: Blocks) -> None:
        """Sets the blocks from the step ``first``, which no rank has planned yet. The move before
        must be in force."""
        assert not self.is_pending
        self._older, self.newest, self.first, self.is_pending = self.newest, blocks, first, True

    def settle(self, step: int) -> None:
        """Puts the newest move into force after this step: its first step is the next, or no pass
        is under way, so that no step is planned."""
        self.is_pending = False
        self.first = min(self.first, step + 1)
