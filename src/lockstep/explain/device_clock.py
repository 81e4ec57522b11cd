"""The time of each part of a step by the clock of a GPU, which runs behind the script: nothing in a step waits for it."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch


class DeviceClock:
    """Marks the GPU's current stream at the end of each part, and reads the marks once the GPU has come by.

    A part is as long as the stream took from the mark before to its own. So what the GPU still had to do while the script
    waited for data counts as what it did, and only the rest as waiting: the parts add up to the time of the stream.

    Args:
        device: the GPU.
        num_parts: how many there are.
    """

    def __init__(self, device: torch.device, num_parts: int) -> None:
        self.seconds = [0.0] * num_parts
        """Of each part, as far as they were read."""
        self._device = device
        self._last: Any = None
        self._marks: deque[tuple[int, Any]] = deque()
        self._free: list[Any] = []

    def begin(self) -> None:
        """A pass begins: count anew."""
        self._free += [event for _, event in self._marks]
        self._marks.clear()
        self.seconds = [0.0] * len(self.seconds)
        self._last = self._record()

    def spent_on(self, part: int) -> None:
        """What the stream was given since the mark before belongs to this part."""
        if not self._is_capturing():  # the time that a captured graph takes counts where it is replayed
            self._marks.append((part, self._record()))

    def read(self, *, wait: bool = False) -> None:
        """Count the marks that the GPU has come by; all of them with ``wait``."""
        if wait and self._marks:
            self._marks[-1][1].synchronize()
        while self._marks and self._marks[0][1].query():
            part, event = self._marks.popleft()
            self.seconds[part] += self._last.elapsed_time(event) / 1e3
            self._free.append(self._last)
            self._last = event

    def _record(self) -> Any:
        event = self._free.pop() if self._free else self._make_event()
        event.record(self._stream())
        return event

    # What is asked of CUDA

    def _make_event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def _is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()
