"""Numbers that a device computes, and that the CPU reads only when they have long arrived."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class LateNumbers:
    """Numbers on their way to the CPU.

    Args:
        values: at least one tensor without dimensions on a device, all of one dtype. (A process may
            have several devices.)
    """

    def __init__(self, values: Sequence[Tensor]) -> None:
        device = values[0].device
        together = torch.stack([value.to(device) for value in values])
        # Only a copy to pinned memory lets the script continue. The event is recorded behind it in
        # the same stream, so it is reached when the numbers are here.
        self._numbers = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
        self._numbers.copy_(together, non_blocking=True)
        self._arrived = torch.accelerator.current_stream(device).record_event()

    def read(self) -> Tensor:
        """The numbers, in order; waits for them."""
        self._arrived.synchronize()
        return self._numbers
