"""The memory of a device before and after the first step of a launch: how much a run needs in
addition to what PyTorch's allocator counts."""

from __future__ import annotations

import torch
from typing_extensions import override

from lockstep._events.writer import EventWriter
from lockstep._listener import Listener, Stage
from lockstep._world.devices import DeviceMemory, memory_of


class FirstStepMemory(Listener):
    """Writes the event ``memory`` after the first step of a launch. On rank 0, for its device.

    By then gradients, the optimizer's state and the buffers of the communication library exist.
    Memory is allocated when kernels are launched, so reading it does not wait for them.
    """

    stage = Stage.LATE

    def __init__(self, events: EventWriter, device: torch.device) -> None:
        self._events = events
        self._device = device
        self._before: DeviceMemory | None = None
        self._is_written = False

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        if self._before is None:
            self._before = memory_of(self._device)

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        if self._is_written:
            return
        self._is_written = True
        before, after = self._before, memory_of(self._device)
        if before is not None and after is not None:
            self._events.write(
                "memory",
                step=step,
                total_bytes=after.total_bytes,
                used_before_bytes=before.used_bytes,
                used_after_bytes=after.used_bytes,
                reserved_before_bytes=before.reserved_bytes,
                reserved_after_bytes=after.reserved_bytes,
            )
