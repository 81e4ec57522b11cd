"""Tensors that a script's streams compute, kept for a stream that reads them later.

A script may compute on several streams of a device. Autograd then computes each gradient in the
stream of its forward pass, and lets the script's stream wait for the others only at the end of the
backward pass: hooks come before."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep._world.devices import has_streams


class Arrivals:
    """Tensors, each with the stream that computes it. Local; never waits on the host."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[tuple[Tensor, torch.Stream]] = []

    def note(self, tensor: Tensor) -> None:
        """Notes that the current stream of the tensor's device computes it."""
        if has_streams(tensor.device):
            self._noted.append((tensor, torch.accelerator.current_stream(tensor.device)))

    def wait(self) -> None:
        """Makes the current stream of each device wait for what was noted, which it may then read.
        Their memory may be freed at any time."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        current: dict[torch.device, torch.Stream] = {}
        others: dict[torch.Stream, torch.Stream] = {}
        for tensor, stream in noted:
            if tensor.device not in current:
                current[tensor.device] = torch.accelerator.current_stream(tensor.device)
            reader = current[tensor.device]
            if stream != reader:
                others[stream] = reader
                # The allocator would give its memory to the next tensor of the other stream, which
                # does not wait for the reader.
                tensor.record_stream(reader)
        for stream, reader in others.items():
            reader.wait_stream(stream)

    def clear(self) -> None:
        """Forgets what was noted."""
        self._noted = []
