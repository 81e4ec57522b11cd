"""The blocks of shards of every step, as loaders plan ahead of the loop."""

from __future__ import annotations

from typing import Any

import torch

from lockstep.plan.blocks import Blocks, blocks_of

_NEVER = 1 << 62


class Moves:
    """Which blocks the steps have: those of the newest move, from its first step on, and the older ones before.

    Steps are planned when their samples are requested, by workers many steps before they are taken. So a move begins with a
    step that no rank has planned yet. All ranks must make the same calls, between the same steps.

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
        """The last step that was planned in this process."""
        self._lead = 0
        """By how many steps a worker that plans itself may be ahead of the loop."""
        self._table: torch.Tensor | None = None
        """For such workers: the first step and the blocks of the two newest moves, in shared memory."""
        self._num_moves = 0

    @property
    def in_force(self) -> Blocks:
        """The blocks of the current step."""
        return self._older if self.is_pending else self.newest

    def at(self, step: int) -> Blocks:
        """The blocks of a step that is being planned."""
        self._planned = max(self._planned, step)
        if self._table is not None:  # this may be a worker, which has a copy of all but the table
            rows: list[list[int]] = self._table.tolist()
            _, *sizes = max(row for row in rows if row[0] <= step)
            return blocks_of(tuple(sizes))
        return self.newest if step >= self.first else self._older

    def planned_until(self, step: int) -> int:
        """The last step that may have been planned on this rank, in this process or by a worker. ``step``: the current one."""
        return max(self._planned, step + self._lead)

    def move(self, first: int, blocks: Blocks) -> None:
        """Have these blocks from the step ``first`` on, which no rank has planned yet. The move before must be in force."""
        assert not self.is_pending
        self._older, self.newest, self.first, self.is_pending = self.newest, blocks, first, True
        self._num_moves += 1
        self._write()

    def settle(self, step: int) -> None:
        """The newest move is in force for what follows this step: its first step is the next, or no pass is under way, so that
        nothing is planned."""
        self.is_pending = False
        if self.first > step + 1:
            self.first = step + 1
            self._write()

    def share(self, lead: int) -> None:
        """Tell of moves a worker that is about to start, and that plans steps itself, up to ``lead`` steps ahead."""
        self._lead = max(self._lead, lead)
        if self._table is None:
            table = torch.full((2, 1 + self.newest.world_size), _NEVER, dtype=torch.int64)
            self._table = table.share_memory_()  # type: ignore[no-untyped-call]
            self._table[1 - self._num_moves % 2] = self._row(0, self._older)
            self._write()

    def _write(self) -> None:
        """Tell workers of the newest move. Those that read meanwhile plan steps before it, for which the other row counts."""
        if self._table is not None:
            row = self._table[self._num_moves % 2]
            row[0] = _NEVER
            row[1:] = self._row(0, self.newest)[1:]
            row[0] = self.first

    @staticmethod
    def _row(first: int, blocks: Blocks) -> Any:
        return torch.tensor([first, *blocks.sizes])
