"""Samples on their way to a device, copied on a stream of its own: not behind the kernels of the
step before.

While a shard runs, the next is copied. Where loader workers fetch, so is the first of the next
step, which is asked for before the current one runs. (Without workers the script's process fetches,
whose code would run at another time.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep._data.batches import map_tensors, to_device
from lockstep._data.source import StepData
from lockstep._data.torch_loader import is_torch_loader
from lockstep._world.devices import new_stream


class _Copy(NamedTuple):
    samples: Any
    """As they are on the host, where they stay until they have arrived."""
    copied: Any
    arrived: torch.Event | None
    """None: they move when they are taken."""


class Upload:
    """The samples of one step, which move to the device shard by shard."""

    def __init__(self, uploads: Uploads, data: list[Any]) -> None:
        self.data = data
        self._uploads = uploads
        self._under_way: dict[int, _Copy] = {}
        """By position in ``data``."""

    def begin(self, position: int) -> None:
        """Begin to copy the samples at a position in ``data``, if there are any."""
        if position < len(self.data) and position not in self._under_way:
            self._under_way[position] = self._uploads.copy(self.data[position])

    def take(self, position: int, samples: Any) -> Any:
        """Samples on the device, for the current stream; those behind them begin to move. (An
        instrument may run others than those at the position.)"""
        known = self._under_way.pop(position, None)
        if known is None or known.samples is not samples:
            known = self._uploads.copy(samples)
        self.begin(position + 1)
        return self._uploads.arrive(known)


class Uploads:
    """Moves the samples of a loader to a device.

    Args:
        device: not the CPU.
        batches: the script's loader.
    """

    def __init__(self, device: torch.device, batches: Any) -> None:
        self._device = device
        self._stream = new_stream(device)
        self._may_refill = _may_refill(batches)
        self._is_reading: torch.Event | None = None
        """After it, no copy reads pinned memory any more that the script may fill again."""
        self._known: list[Upload] = []
        """That of the current step and of the next, if this is known before it begins."""

    def of(self, data: list[Any]) -> Upload:
        """The upload of a step's samples, which may be under way."""
        return next((upload for upload in self._known if upload.data is data), Upload(self, data))

    def one_ahead(self, steps: Iterator[StepData]) -> Iterator[StepData]:
        """The same steps, each asked for before the script gets the one before it, so that its
        first samples move meanwhile."""
        coming = next(steps, None)
        try:
            while coming is not None:
                current, coming, failure = coming, None, None
                try:
                    coming = next(steps, None)
                except Exception as error:  # of the next step: this one is still to be taken
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
        """Before the script's loader is asked for its next batch: wait until what was copied may be
        changed. Copies of pinned memory do not hold up the script, which may fill one buffer again
        and again, as it may with ``x.to(device)``."""
        if self._is_reading is not None:
            self._is_reading.synchronize()
            self._is_reading = None

    def move(self, samples: Any) -> Any:
        """Samples on the device, for the current stream."""
        return self.arrive(self.copy(samples))

    def copy(self, samples: Any) -> _Copy:
        """Begin to copy samples: the tensors of which memory and stream are known. The rest moves
        when they are taken."""
        if self._stream is None:
            return _Copy(samples, samples, None)
        with self._stream:
            pinned: list[bool] = []
            copied = map_tensors(lambda tensor: self._copied(tensor, pinned), samples, skip="to")
            arrived = self._stream.record_event()
            if any(pinned):
                self._is_reading = arrived
            return _Copy(samples, copied, arrived)

    def arrive(self, copy: _Copy) -> Any:
        """The samples on the device, for the current stream, which waits for them."""
        if copy.arrived is None:
            return to_device(copy.copied, self._device, non_blocking=not self._may_refill)
        stream = torch.accelerator.current_stream(self._device)
        stream.wait_event(copy.arrived)

        def arrived(tensor: Tensor) -> Tensor:
            moved = tensor.to(self._device, non_blocking=not self._may_refill)
            # else its memory could be given to the next samples while the stream still reads it
            if _is_plain(moved):
                moved.record_stream(stream)
            return moved

        return map_tensors(arrived, copy.copied, "to", self._device)

    def _copied(self, tensor: Tensor, pinned: list[bool]) -> Tensor:
        if not tensor.is_cpu or not _is_plain(tensor):
            return tensor
        if self._may_refill:
            pinned.append(tensor.is_pinned())
        return tensor.to(self._device, non_blocking=True)


def fetches_ahead(batches: Any) -> bool:
    """Whether the script cannot notice when its loader is asked for a batch, since workers have
    fetched it by then, and no ``__iter__`` of the script's own runs."""
    return is_torch_loader(batches) and batches.num_workers > 0


def _may_refill(batches: Any) -> bool:
    """Whether the memory of batches may be the script's own: not where PyTorch's loader has pinned
    a copy, or got it from a worker."""
    return not (is_torch_loader(batches) and (batches.num_workers > 0 or batches.pin_memory))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested
