"""Likely causes of a failure that its own message does not name: no memory left, a full
``/dev/shm``."""

from __future__ import annotations

from dataclasses import replace

from lockstep._launch.failures import Failure
from lockstep._tools.explain.errors.processes import shared_memory
from lockstep._tools.explain.launching.memory import limit_bytes, oom_kills
from lockstep._world.machine.sizes import size


class Causes:
    """Names the causes of failures in one start of the workers. (Those of loader workers:
    ``errors.processes``.)"""

    def __init__(self) -> None:
        self._kills_before = oom_kills()

    def name(self, failure: Failure) -> Failure:
        """The failure, with the likely cause and a remedy added if they are known and its own
        message does not have them."""
        if failure.kind == "SIGBUS":
            return replace(
                failure,
                remark=f"Most likely rank {failure.rank} found /dev/shm full, where loader workers hand batches over. "
                f"{shared_memory()} Use fewer of them (num_workers=, or --workers), smaller batches or a smaller "
                "prefetch_factor, or enlarge it: docker run --shm-size=8g (or --ipc=host), mount -o remount,size=8g /dev/shm",
            )
        if failure.kind == "SIGKILL" and (kills := oom_kills() - self._kills_before) > 0:
            many = "a process" if kills == 1 else f"{kills} processes"
            remark = (
                f"The kernel has killed {many} during this run because memory ran out, and most likely rank {failure.rank}. "
                f"Use smaller batches, fewer loader workers or fewer processes on this machine{_limit()}"
            )
            return replace(failure, message="killed by the kernel, because memory ran out", remark=remark)
        return failure


def _limit() -> str:
    limit = limit_bytes()
    return "" if limit is None else f", or raise the limit of this container or job: {size(limit)}"
