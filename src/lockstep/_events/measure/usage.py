"""What a process uses during an interval: CPU time, memory, and the GPU.

Counters of the kernel and PyTorch are read at the beginning and the end. Nothing runs in between,
except a mostly sleeping thread if there is a GPU.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from lockstep._world import devices

_SAMPLE_EVERY_S = 0.5  # NVML itself averages over 1/6 to 1 s


class Usage:
    """The resources that this process and its descendants use from now on. Looking up the children
    takes a few milliseconds, before the clock starts."""

    def __init__(self) -> None:
        module = devices.in_use()
        self._sampler = _GpuSampler(module) if hasattr(module, "utilization") else None
        self._cpu_s = _family_cpu_s()
        self._began_s = time.perf_counter()

    def end(self) -> dict[str, Any]:
        """End the interval; the clock stops first. Local, and does not wait for the GPU.

        Returns:
            ``wall_s``; ``cpu_s``, of this process and all its descendants (loader workers), running
            or ended, but for a child that was never waited for, or has become a daemon;
            ``peak_rss_bytes``, the peak resident memory of *this process* since it started, shared
            libraries included; ``peak_gpu_bytes``, the same of what PyTorch's allocator has
            reserved (a context and NCCL's buffers take some hundred MB more); ``gpu_utilisation``,
            the mean percentage of time in which any kernel, of any process, ran on this process's
            GPUs. The last two are None without a GPU, or if its kind has no such counter; the last
            one also if it cannot be read (with CUDA that takes the package ``nvidia-ml-py``).
        """
        wall_s = time.perf_counter() - self._began_s
        # The time of a child that ended without being waited for is lost, so the difference could
        # be negative.
        cpu_s = max(0.0, _family_cpu_s() - self._cpu_s)
        module = devices.in_use()
        return {
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "peak_rss_bytes": peak_rss_bytes(),
            "peak_gpu_bytes": sum(_reserved(module)) if hasattr(module, "max_memory_reserved") else None,
            "gpu_utilisation": None if self._sampler is None else self._sampler.stop(),
        }


def peak_rss_bytes() -> int:
    """Peak resident memory of this process since it started."""
    try:
        # Not getrusage, whose maximum survives exec, so that a small child of a large process looks
        # large. (psutil 5.9 has no maximum.)
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _family_cpu_s() -> float:
    """CPU time so far of this process, its running descendants, and the ended ones that were waited
    for, in seconds.

    When a parent waits for a child, the child's time moves to the parent's count of ended children,
    so the difference between two calls is right whichever children came and went. (One that ends
    between the two readings below is missed in this call; the order of the readings prevents
    counting it twice.)
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
    """Whether this process has a child. Asks the kernel, since psutil would read all of /proc,
    which takes a millisecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # reaps nothing
    except ChildProcessError:
        return False
    return True


def gpus_in_use(module: Any) -> list[int]:
    """Returns the GPUs on which this process has memory, or otherwise its current one. (Querying
    another one would initialize it.) ``module`` is the result of ``devices.in_use``."""
    reserved = _reserved(module) if hasattr(module, "max_memory_reserved") else []
    used = [gpu for gpu, num_bytes in enumerate(reserved) if num_bytes > 0]
    return used or [torch.accelerator.current_device_index()]


def _reserved(module: Any) -> list[int]:
    """Returns for each GPU the peak of the memory that PyTorch's allocator has reserved, in
    bytes."""
    return [int(module.max_memory_reserved(gpu)) for gpu in range(module.device_count())]


class _GpuSampler:
    """A thread that samples the mean utilisation of this process's GPUs."""

    def __init__(self, module: Any) -> None:
        self._read = module.utilization
        self._gpus = gpus_in_use(module)
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
            # Wait first, since a reading covers the time before it. The last one is taken at the
            # end, so that short intervals have one, too.
            ended = self._done.wait(_SAMPLE_EVERY_S)
            try:
                self._samples.append(sum(float(self._read(gpu)) for gpu in self._gpus) / len(self._gpus))
            except Exception:  # it cannot be read: no NVML, no permission, or a MIG instance
                return
