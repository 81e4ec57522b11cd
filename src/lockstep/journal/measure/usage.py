"""What a process used during an interval: CPU time, memory, and the GPU.

The meter reads counters of the kernel and PyTorch at the beginning and the end. Nothing runs in between, except a mostly
sleeping thread if there is a GPU. It never imports torch, which a process that uses a GPU has already done.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.base.errors import UsageError

_SAMPLE_EVERY_S = 0.5  # NVML itself averages over 1/6 to 1 s


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one process and its descendants used between ``start()`` and ``stop()``."""

    wall_s: float
    cpu_s: float
    """CPU time (user and system) of this process and all its descendants (loader workers), running or ended. That of a
    child that was never waited for, or has become a daemon, is missing."""
    peak_rss_bytes: int
    """Peak resident memory of *this process* since it started, not only since ``start()``. Excludes loader workers, GPU memory
    and swapped-out pages; includes shared libraries, in each process."""
    peak_gpu_bytes: int | None
    """Peak memory reserved by PyTorch's allocator on the GPUs since the process started; None without CUDA. Excludes the CUDA
    context and NCCL's buffers, some hundred MB per process."""
    gpu_utilisation: float | None
    """Mean percentage of time in which any kernel, of any process, ran on this process's GPUs; None without CUDA, or if it
    cannot be read (that takes the package ``nvidia-ml-py``)."""


class UsageMeter:
    """Measures one interval at a time, from ``start()`` to ``stop()``. Starting again discards an unfinished one."""

    def __init__(self) -> None:
        self._wall_s = 0.0
        self._cpu_s = 0.0
        self._started = False
        self._sampler: _GpuSampler | None = None

    def start(self) -> None:
        """Begin an interval. Looking up the children takes a few milliseconds, before the clock starts."""
        self._drop_sampler()
        cuda = _cuda_in_use()
        if cuda is not None:
            self._sampler = _GpuSampler(cuda)
        self._started = True
        self._cpu_s = _family_cpu_s()
        self._wall_s = time.perf_counter()

    def stop(self) -> Usage:
        """End the interval; the clock stops first. Local, and does not wait for the GPU.

        Raises:
            UsageError: ``start()`` was not called before.
        """
        if not self._started:
            raise UsageError("UsageMeter.stop() without start(): there is no interval to end")
        wall_s = time.perf_counter() - self._wall_s
        # The time of a child that ended without being waited for is lost, so the difference could be negative.
        cpu_s = max(0.0, _family_cpu_s() - self._cpu_s)
        self._started = False
        cuda = _cuda_in_use()
        return Usage(
            wall_s=wall_s,
            cpu_s=cpu_s,
            peak_rss_bytes=peak_rss_bytes(),
            peak_gpu_bytes=None if cuda is None else _peak_gpu_bytes(cuda),
            gpu_utilisation=self._drop_sampler(),
        )

    def _drop_sampler(self) -> float | None:
        sampler, self._sampler = self._sampler, None
        return None if sampler is None else sampler.stop()


def peak_rss_bytes() -> int:
    """Peak resident memory of this process since it started (see ``Usage.peak_rss_bytes``)."""
    try:
        # Not getrusage, whose maximum survives exec, so that a small child of a large process looks large. (psutil 5.9 has no
        # maximum.)
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _family_cpu_s() -> float:
    """CPU time so far of this process, its running descendants, and the ended ones that were waited for, in seconds.

    When a parent waits for a child, the child's time moves to the parent's count of ended children, so the difference between
    two calls is right whichever children came and went. (One that ends between the two readings below is missed in this call;
    the order of the readings prevents counting it twice.)
    """
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    if not _has_children():
        return total
    import psutil  # imported here, since it would delay the start of every process

    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it has ended
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _has_children() -> bool:
    """Whether this process has a child. Asks the kernel, since psutil would read all of /proc, which takes a millisecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # reaps nothing
    except ChildProcessError:
        return False
    return True


def _cuda_in_use() -> Any:
    """``torch.cuda`` if this process uses a GPU, else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _peak_gpu_bytes(cuda: Any) -> int:
    return sum(int(cuda.max_memory_reserved(index)) for index in range(cuda.device_count()))


def gpus_in_use(cuda: Any) -> list[int]:
    """The GPUs on which this process has memory, or else its current one. (Querying another one would initialize it.)"""
    used = [index for index in range(cuda.device_count()) if cuda.max_memory_reserved(index) > 0]
    return used or [cuda.current_device()]


class _GpuSampler:
    """A thread that samples the mean utilisation of this process's GPUs."""

    def __init__(self, cuda: Any) -> None:
        self._read = cuda.utilization
        self._gpus = gpus_in_use(cuda)
        self._samples: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-gpu-usage", daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """The mean of the samples, in per cent; None if there are none."""
        self._done.set()
        self._thread.join()
        return sum(self._samples) / len(self._samples) if self._samples else None

    def _run(self) -> None:
        ended = False
        while not ended:
            # Wait first, since a reading covers the time before it. The last one is taken at the end, so that short
            # intervals have one, too.
            ended = self._done.wait(_SAMPLE_EVERY_S)
            try:
                self._samples.append(sum(float(self._read(gpu)) for gpu in self._gpus) / len(self._gpus))
            except Exception:  # it cannot be read: no NVML, no permission, or a MIG instance
                return
