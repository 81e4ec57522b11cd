"""Copies of samples to a device, on a separate stream: they do not wait for the kernels of the step
before.

::

    compute stream    | shard 0        | shard 1        | shard 0 of the next step
    copy stream       | shard 1 |      | next shard 0 | |
                        recorded as an event; the compute stream waits for it before it reads

While a shard runs, the next one is copied. With loader workers, so is the first shard of the next
step, which is requested before the current step runs. Without workers the fetch runs in the
script's process, and an early request would run the user's code at another time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep._data.batches import map_tensors, object_to_device, to_device
from lockstep._data.source import StepData
from lockstep._data.torch_loader import is_torch_loader
from lockstep._world.devices import new_stream


class _Copy(NamedTuple):
    """Samples on their way to the device."""

    samples: Any
    """The samples on the host. They are kept until the copy has finished reading them."""
    copied: Any
    """The samples on the device."""
    arrived: torch.Event | None
    """The event after which the copies are complete; None: samples are copied when taken."""


class Upload:
    """The samples of one step, which move to the device shard by shard."""

    def __init__(self, uploads: Uploads, data: list[Any]) -> None:
        self.data = data
        self._uploads = uploads
        self._under_way: dict[int, _Copy] = {}
        """The copies under way, by position in ``data``."""

    def begin(self, position: int) -> None:
        """Begins to copy the samples at a position in ``data``, if there are any."""
        if position < len(self.data) and position not in self._under_way:
            self._under_way[position] = self._uploads.copy(self.data[position])

    def take(self, position: int, samples: Any) -> Any:
        """Returns samples on the device, for the current stream, and begins to copy the next ones.
        (An instrument may pass other samples than the ones at this position.)"""
        # The position alone is not enough: a dry run may pass the samples of another shard.
        known = self._under_way.pop(position, None)
        if known is None or known.samples is not samples:
            known = self._uploads.copy(samples)
        self.begin(position + 1)
        return self._uploads.arrive(known)


class Uploads:
    """The copies of a loader's samples to a device.

    Args:
        device: the device, not the CPU.
        batches: the script's loader.
    """

    def __init__(self, device: torch.device, batches: Any) -> None:
        self._device = device
        self._stream = new_stream(device)
        self._may_refill = _may_refill(batches)
        self._is_reading: torch.Event | None = None
        """The event after which no copy reads pinned memory that the script may refill; None: no
        copy reads such memory."""
        self._known: list[Upload] = []
        """The uploads of the current step and of the next one, if that was requested early."""

    def of(self, data: list[Any]) -> Upload:
        """Returns the upload of a step's samples, which may be under way."""
        return next((upload for upload in self._known if upload.data is data), Upload(self, data))

    def one_ahead(self, steps: Iterator[StepData]) -> Iterator[StepData]:
        """Yields the same steps, but requests each before the script gets the one before it, so
        that its first samples are copied in the meantime."""
        coming = next(steps, None)
        try:
            while coming is not None:
                current, coming, failure = coming, None, None
                try:
                    coming = next(steps, None)
                except Exception as error:  # of the next step: the script still gets the current one
                    failure = error
                self._known = [self.of(current[1]), *([] if coming is None else [Upload(self, coming[1])])]
                for upload in self._known:
                    upload.begin(0)
                yield current
                if failure is not None:
                    raise failure
        finally:
            self._known = []

    def settle(self) -> None:
        """Waits, before the script's loader is asked for its next batch, until copied memory may
        change. A script may refill one pinned buffer for each batch. With ``x.to(device)`` that is
        safe, and so it must be here, although these copies do not block."""
        if self._is_reading is not None:
            self._is_reading.synchronize()
            self._is_reading = None

    def move(self, samples: Any) -> Any:
        """Returns samples on the device, for the current stream."""
        return self.arrive(self.copy(samples))

    def copy(self, samples: Any) -> _Copy:
        """Begins to copy samples: the plain tensors. Other objects are copied when they are taken,
        on the stream that uses them: only their class knows their tensors, so their memory could
        not be protected from the next copies on this stream."""
        if self._stream is None:
            return _Copy(samples, samples, None)
        with self._stream:
            pinned: list[bool] = []
            copied = map_tensors(lambda tensor: self._copied(tensor, pinned), samples, "to")
            arrived = self._stream.record_event()
            if any(pinned):
                self._is_reading = arrived
            return _Copy(samples, copied, arrived)

    def arrive(self, copy: _Copy) -> Any:
        """Returns the samples on the device. The current stream waits for their copies."""
        if copy.arrived is None:
            return to_device(copy.copied, self._device, non_blocking=not self._may_refill)
        stream = torch.accelerator.current_stream(self._device)
        stream.wait_event(copy.arrived)
        is_kept = not self._may_refill

        def arrived(tensor: Tensor) -> Tensor:
            moved = tensor.to(self._device, non_blocking=is_kept)
            # The memory belongs to the copy stream. Without this call, PyTorch could reuse it for
            # the next samples while this stream still reads it.
            if _is_plain(moved):
                moved.record_stream(stream)
            return moved

        return map_tensors(
            arrived, copy.copied, "to", lambda value: object_to_device(value, self._device, non_blocking=is_kept)
        )

    def _copied(self, tensor: Tensor, pinned: list[bool]) -> Tensor:
        if not tensor.is_cpu or not _is_plain(tensor):
            return tensor
        if self._may_refill:
            pinned.append(tensor.is_pinned())
        return tensor.to(self._device, non_blocking=True)


def fetches_ahead(batches: Any) -> bool:
    """Returns whether the script cannot notice when its loader is asked for a batch: workers have
    already fetched it, and no ``__iter__`` of the script runs."""
    return is_torch_loader(batches) and batches.num_workers > 0


def _may_refill(batches: Any) -> bool:
    """Returns whether the script may refill the memory of a batch. It cannot if PyTorch's loader
    has pinned a copy, or received the batch from a worker."""
    return not (is_torch_loader(batches) and (batches.num_workers > 0 or batches.pin_memory))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested
