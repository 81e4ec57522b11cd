"""The events that PyTorch's profiler recorded in some steps: launches, waits of the host, and the
time of each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
WAITS = (
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaDeviceSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
)
COUNTED = "lockstep: the steps that count"


class Profile:
    """Of the steps between ``begin`` and ``end``. Used once."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_cuda else [])]
        self._profile: Any = profile(activities=activities)
        self._span: Any = record_function(COUNTED)

    def start(self) -> None:
        """A step before ``begin``: what the profiler itself does when it starts is none of the
        steps' business."""
        self._profile.start()

    def begin(self) -> None:
        self._span.__enter__()

    def end(self) -> None:
        self._span.__exit__(None, None, None)
        self._profile.stop()  # waits for the device

    def counts(self, names: tuple[str, ...]) -> Counter[str]:
        """How often calls whose names begin so were made in the steps that count."""
        events = self._profile.events() or []
        # The device has an event of this name, too.
        (span,) = (
            event.time_range
            for event in events
            if event.name == COUNTED and not event.is_async and event.device_type.name == "CPU"
        )
        within = (event.name for event in events if span.start <= event.time_range.start <= span.end)
        return Counter(name for name in within if name.startswith(names))

    def table(self, rows: int = 15) -> str:
        """The operations that took longest."""
        order = "self_device_time_total" if self._on_cuda else "self_cpu_time_total"
        return str(self._profile.key_averages().table(sort_by=order, row_limit=rows, max_name_column_width=60))

    def export(self, path: Path) -> None:
        """For chrome://tracing and ui.perfetto.dev."""
        self._profile.export_chrome_trace(str(path))
