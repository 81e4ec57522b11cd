"""What a stretch of a process's work used: CPU seconds, memory, and the GPU.

The meter reads counters that the kernel and PyTorch keep anyway, once at each end: nothing runs in between, except
one sleeping thread where there is a GPU. It never imports torch: a process that uses a GPU has done so already.
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

from lockstep.errors import UsageError

_SAMPLE_EVERY_S = 0.5  # NVML averages over 1/6 to 1 s itself, so sampling faster shows nothing new


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one process, and the processes it started, used between ``start()`` and ``stop()``."""

    wall_s: float
    cpu_s: float
    """CPU seconds (user and system) of this process and of all its descendants (loader workers), living or ended.
    Those of a child that was never waited for, or that left the family as a daemon, are missing."""
    peak_rss_bytes: int
    """Largest resident memory of *this process* since it began, not only since ``start()``. Loader workers, memory
    on the GPU and pages that were swapped out are not in it; libraries that processes share are, in each of them."""
    peak_gpu_bytes: int | None
    """The most that PyTorch's allocator has held on the GPUs (reserved) since the process began; None without CUDA.
    The CUDA context and NCCL's own buffers, some hundred MB a process, are not in it."""
    gpu_utilisation: float | None
    """Mean per cent of time that a kernel ran on this process's GPUs, whosever kernel it was; None without CUDA, or
    where it cannot be read (it takes the package ``nvidia-ml-py``)."""


class UsageMeter:
    """Measures one stretch at a time: ``start()``, the work, ``stop()``. Starting again drops an unfinished stretch."""

    def __init__(self) -> None:
        self._wall_s = 0.0
        self._cpu_s = 0.0
        self._started = False
        self._sampler: _GpuSampler | None = None

    def start(self) -> None:
        """Begin a stretch. Looking up the living children takes a few milliseconds, before the clock starts."""
        self._drop_sampler()
        cuda = _cuda_in_use()
        if cuda is not None:
            self._sampler = _GpuSampler(cuda)
        self._started = True
        self._cpu_s = _family_cpu_s()
        self._wall_s = time.perf_counter()

    def stop(self) -> Usage:
        """End the stretch; the clock stops first. Not a collective, and never waits for the GPU.

        Raises:
            UsageError: ``start()`` was not called before.
        """
        if not self._started:
            raise UsageError("UsageMeter.stop() without start(): there is no stretch to end")
        wall_s = time.perf_counter() - self._wall_s
        # A child that left without being waited for takes its seconds with it: the difference could be negative.
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
    """Largest resident memory of this process since it began (see ``Usage.peak_rss_bytes``)."""
    try:
        # Not getrusage: its maximum survives exec, so that a small child of a large process looks large. (Nor psutil 5.9, which
        # has no maximum.)
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _family_cpu_s() -> float:
    """CPU seconds so far of this process, its living descendants, and all that any of them waited for.

    A child's seconds move to its parent's count of ended children when the parent waits for it, never lost and never
    in both places, so the difference between two calls is right whichever children came and went. (One that ends
    between the two readings below is missed in this call: the order makes it too few, not twice.)
    """
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    if not _has_children():
        return total
    import psutil  # only here: it would delay the start of every process

    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it ended meanwhile
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _has_children() -> bool:
    """Whether this process has a child, asked of the kernel: psutil would read all of /proc, which takes a millisecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # reaps nothing
    except ChildProcessError:
        return False
    return True


def _cuda_in_use() -> Any:
    """``torch.cuda`` if this process has imported torch and begun to use a GPU, else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _peak_gpu_bytes(cuda: Any) -> int:
    return sum(int(cuda.max_memory_reserved(index)) for index in range(cuda.device_count()))


def gpus_in_use(cuda: Any) -> list[int]:
    """The GPUs on which this process has memory, or else its current one. (To ask any other would begin to use it.)"""
    used = [index for index in range(cuda.device_count()) if cuda.max_memory_reserved(index) > 0]
    return used or [cuda.current_device()]


class _GpuSampler:
    """A thread that reads the utilisation of the process's GPUs now and then: the mean over them."""

    def __init__(self, cuda: Any) -> None:
        self._read = cuda.utilization
        self._gpus = gpus_in_use(cuda)
        self._samples: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-gpu-usage", daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """Mean of the samples, in per cent; None if the GPU could not be read."""
        self._done.set()
        self._thread.join()
        return sum(self._samples) / len(self._samples) if self._samples else None

    def _run(self) -> None:
        ended = False
        while not ended:
            # Wait first: a reading covers the time before it. The last one is taken when the stretch ends, so that
            # a stretch shorter than the interval has one too.
            ended = self._done.wait(_SAMPLE_EVERY_S)
            try:
                self._samples.append(sum(float(self._read(gpu)) for gpu in self._gpus) / len(self._gpus))
            except Exception:  # no NVML, a driver without permission, a GPU in slices: it cannot be read here
                return
