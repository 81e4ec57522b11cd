"""Tensors that a script's streams compute, kept for a stream that reads them later.

A script may compute on several streams of a device. Autograd then computes each gradient in the
stream of its forward pass, and lets the script's stream wait for the others only at the end of the
backward pass: hooks come before."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep._world.devices import has_streams


class Arrivals(list[tuple[Tensor, torch.Stream]]):
    """Tensors, each with the stream that computes it. Local; the host never waits."""

    def note(self, tensor: Tensor) -> None:
        """Notes that the current stream of the tensor's device computes it."""
        if not tensor.is_cpu and has_streams(tensor.device):
            self.append((tensor, torch.accelerator.current_stream(tensor.device)))

    def wait(self) -> None:
        """Makes the current stream of each device wait for what was noted, which it may then read.
        Their memory may be freed at any time."""
        if not self:
            return
        current: dict[torch.device, torch.Stream] = {}
        others: dict[torch.Stream, torch.Stream] = {}
        for tensor, stream in self:
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
        self.clear()
