"""Likely causes of a failure that its own message does not name: no memory left, a full
``/dev/shm``."""

from __future__ import annotations

from dataclasses import replace

from lockstep._launch.failures import Failure
from lockstep._tools.explain.errors.processes import ENLARGE_SHM, shared_memory
from lockstep._tools.explain.launching.memory import limit_bytes, oom_kills
from lockstep._world.machine.sizes import size


class Causes:
    """Names the causes of failures in one start of the workers. (``errors.processes`` explains
    loader workers.)"""

    def __init__(self) -> None:
        self._kills_before = oom_kills()

    def name(self, failure: Failure) -> Failure | None:
        """Returns the failure with its likely cause and a remedy; None: the failure's own message
        has them, or they are unknown."""
        if failure.kind == "SIGBUS":
            return replace(
                failure,
                remark=f"Most likely /dev/shm was full on rank {failure.rank}: loader workers pass batches through it. "
                f"{shared_memory()} {ENLARGE_SHM}. Or use fewer loader workers (num_workers=, or --workers), smaller batches "
                "or a smaller prefetch_factor",
            )
        if failure.kind == "SIGKILL" and (kills := oom_kills() - self._kills_before) > 0:
            many = "a process" if kills == 1 else f"{kills} processes"
            remark = (
                f"The kernel killed {many} during this run because memory ran out, most likely including rank {failure.rank}. "
                f"Use smaller batches, fewer loader workers or fewer processes on this machine{_limit()}"
            )
            return replace(failure, message="killed by the kernel because memory ran out", remark=remark)
        return None


def _limit() -> str:
    limit = limit_bytes()
    return "" if limit is None else f", or raise the limit of this container or job: {size(limit)}"
