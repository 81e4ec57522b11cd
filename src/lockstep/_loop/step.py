"""``Step``: the body of the script's loop over a prepared loader, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep._data.batch import Shards
from lockstep._plan.shards import StepPlan


class Step:
    """A step that runs.

    Args:
        plan: of the step.
    """

    __slots__ = ("num_done", "opened", "plan")

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.num_done = 0
        """The number of completed phases: the index of the running one."""
        self.opened: list[Shards] = []
        """The iterators over shards that the script has requested since the last phase. (On a
        process without samples, the second of ``zip(a.shards, b.shards)`` never begins.)"""

    def followers(self, leaders_plan: StepPlan) -> int:
        """Returns what ranks without samples must learn of the loops that have followed the leading
        one, whose batch has this plan: a bit for each of ``opened``; 0 if every rank has samples.
        Without samples, ``zip(a.shards, b.shards)`` ends before it asks ``b``, as if a loop over
        ``b`` were still to come."""
        if leaders_plan.num_active_ranks == len(leaders_plan.blocks.by_rank):
            return 0
        return sum(1 << number for number, shards in enumerate(self.opened) if shards.is_follower)

    def end_following(self, followers: int, values: Mapping[str, Any]) -> None:
        """Ends the loops that have followed the leading one.

        Args:
            followers: of all ranks.
            values: the results of the phase, which batches that followed get, too.
        """
        for number, shards in enumerate(self.opened):
            if shards.is_follower or followers >> number & 1:
                shards.end_following()
                shards.batch.values.update(values)
        self.opened = [shards for shards in self.opened if not shards.is_over]
