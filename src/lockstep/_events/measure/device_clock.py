"""Times the parts of a step on a GPU, which runs asynchronously, without making the script wait for
it."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from lockstep._world.devices import is_capturing


class DeviceClock:
    """A clock that records an event in the GPU's current stream at the end of each part, and reads
    the events that the GPU has reached.

    A part lasts from the previous event to its own. While the script waits for data, the GPU may
    still be working: that time counts as work, and only the rest as waiting. So the parts add up to
    the time of the stream.

    Args:
        num_parts: how many parts there are.
    """

    def __init__(self, device: torch.device, num_parts: int) -> None:
        self.seconds = [0.0] * num_parts
        """The seconds of each part, up to the last event read."""
        self._device = device
        self._last: Any = None
        self._pending: deque[tuple[int, Any]] = deque()
        self._free: list[Any] = []

    def begin(self) -> None:
        """Restart at 0, at the beginning of a pass."""
        self._free += [event for _, event in self._pending]
        self._pending.clear()
        self.seconds = [0.0] * len(self.seconds)
        self._last = self._record()

    def charge(self, part: int) -> None:
        """Count what was submitted to the stream since the previous event as this part."""
        if not self._is_capturing():  # a captured graph is timed when it is replayed
            self._pending.append((part, self._record()))

    def read(self, *, wait: bool = False) -> None:
        """Add the parts whose events the GPU has reached; with ``wait``, wait for it to reach all
        of them."""
        if wait and self._pending:
            self._pending[-1][1].synchronize()
        # From the oldest on: a stream runs in order, so the GPU has reached no event behind one
        # that it has not reached. `elapsed_time` is in milliseconds.
        while self._pending and self._pending[0][1].query():
            part, event = self._pending.popleft()
            self.seconds[part] += self._last.elapsed_time(event) / 1e3
            self._free.append(self._last)
            self._last = event

    def _record(self) -> Any:
        event = self._free.pop() if self._free else self._make_event()
        event.record(self._stream())
        return event

    # Calls of the device

    def _make_event(self) -> Any:
        return torch.Event(self._device, enable_timing=True)

    def _stream(self) -> Any:
        return torch.accelerator.current_stream(self._device)

    def _is_capturing(self) -> bool:
        return is_capturing(self._device)
