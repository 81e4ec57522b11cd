"""Likely causes of a failure that its own message does not name: no memory left, a full ``/dev/shm``, a known crash."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lockstep.launch.failures import Failure
from lockstep.tools.explain.launching.memory import limit_bytes, oom_kills
from lockstep.world.machine.sizes import size

_LOADER = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: (Bus error|Killed)")
_SHM = Path("/dev/shm")


class Causes:
    """Names the causes of failures in one start of the workers, which have the environment ``environ``."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._kills_before = oom_kills()

    def name(self, failure: Failure) -> Failure:
        """The failure, with the likely cause and a remedy added if they are known and its own message does not have them."""
        loader = _LOADER.search(failure.text or failure.message)
        whose = f"loader worker {loader[1]} of rank {failure.rank}" if loader else f"rank {failure.rank}"
        signalled = {"Bus error": "SIGBUS", "Killed": "SIGKILL"}[loader[2]] if loader else failure.kind
        if signalled == "SIGBUS" and (free := _shared_memory()):
            return replace(
                failure,
                remark=f"{free}: {whose} found it full. Loader workers hand batches over there. Use fewer of them "
                "(num_workers=, or --workers), smaller batches or a smaller prefetch_factor, or enlarge it: docker run "
                "--shm-size=8g (or --ipc=host), mount -o remount,size=8g /dev/shm",
            )
        if signalled == "SIGKILL" and (kills := oom_kills() - self._kills_before) > 0:
            many = "a process" if kills == 1 else f"{kills} processes"
            remark = (
                f"The kernel has killed {many} during this run because memory ran out, and most likely {whose}. Use smaller "
                f"batches, fewer loader workers or fewer processes on this machine{_limit()}"
            )
            message = failure.message if loader else "killed by the kernel, because memory ran out"
            return replace(failure, message=message, remark=remark)
        if signalled == "SIGSEGV" and self._environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
            return replace(
                failure,
                remark="TORCH_DISTRIBUTED_DEBUG=DETAIL is set: with it PyTorch has been seen to crash where "
                "DistributedDataParallel is made (2.13, Gloo). Set it to INFO, or leave it out",
            )
        return failure


def _limit() -> str:
    limit = limit_bytes()
    return "" if limit is None else f", or raise the limit of this container or job: {size(limit)}"


def _shared_memory() -> str:
    try:
        whole, _, free = map(size, shutil.disk_usage(_SHM))
    except OSError:
        return ""
    return f"{_SHM} of this machine has {whole}, {free} of them free now"
