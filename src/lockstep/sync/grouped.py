"""Ranks that agree through PyTorch's process groups; a step without samples for some is a matter of the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.group import Meeting, open_sub_group
from lockstep.errors import UsageError
from lockstep.plan.shards import MicroStep
from lockstep.sync.sharded import ShardedSync


class GroupedSync(ShardedSync):
    """Weights and buffers meet here; a subclass says how gradients do.

    Args:
        num_shards: V of the run.
        meeting: how the ranks reach each other.
    """

    def __init__(self, num_shards: int, meeting: Meeting) -> None:
        super().__init__(num_shards)
        self._meeting = meeting
        self._world_size = dist.get_world_size()
        self._sub_groups: dict[int, dist.ProcessGroup] = {}
        """The ranks with samples in a step, by their number, where that is not one or all. (On others, nothing.)"""
        self._agreed: set[int] = set()
        """The backward calls of a body of which the ranks have told each other whether they have weights."""

    def begin(self, turn: MicroStep) -> None:
        """See Sync."""
        super().begin(turn)
        if turn.index == 0:
            self._note_active(turn.num_active_ranks)

    def absent(self, num_active_ranks: int) -> None:
        """See Sync."""
        super().absent(num_active_ranks)
        self._note_active(num_active_ranks)

    def close(self) -> None:
        """See Sync."""
        self._sub_groups.clear()

    def _note_active(self, number: int) -> None:
        if 1 < number < self._world_size and number not in self._sub_groups:
            # Gloo, which takes tensors on cards too: NCCL would split the group, and wait for the ranks outside.
            self._sub_groups[number] = open_sub_group(range(number), self._meeting, backend="gloo")

    def _active_group(self) -> dist.ProcessGroup | None:
        """The ranks that have samples in this step; None if there is only this one."""
        assert self._turn is not None
        size = self._turn.num_active_ranks
        if size == 1:
            return None
        return dist.group.WORLD if size == self._world_size else self._sub_groups[size]

    def _start_agreeing(
        self, call: int, total: float | None, changed: list[bool]
    ) -> Callable[[], tuple[float | None, list[bool]]]:
        group = self._active_group()
        if group is None or (call in self._agreed and total is None and not changed):
            return lambda: (total, changed)
        self._agreed.add(call)
        weighted = total is not None
        message = torch.tensor([total or 0.0, float(weighted), *map(float, changed)], dtype=torch.float64)
        work = dist.all_reduce(message, group=group, async_op=True)
        assert work is not None

        def wait() -> tuple[float | None, list[bool]]:
            work.wait()
            summed, num_weighted, *flags = message.tolist()
            if num_weighted not in (0, dist.get_world_size(group)):
                raise UsageError(
                    f"{num_weighted:.0f} of {dist.get_world_size(group)} ranks gave backward() a weight: all shards must "
                    "give one, or none may"
                )
            return (summed if weighted else None), [flag > 0 for flag in flags]

        return wait

    def _buffer_reduction(self) -> Callable[[Tensor], None] | None:
        group = self._active_group()
        if group is None:
            return None

        def all_reduce(flat: Tensor) -> None:
            dist.all_reduce(flat, group=group)

        return all_reduce
