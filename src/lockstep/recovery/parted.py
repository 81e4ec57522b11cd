"""Detecting ranks that have diverged, by comparing every few steps what must be the same on all of them.

Each rank sums the bits of its weights, buffers, optimizer state, learning rates, registered state and the random stream
outside of ``batch.shards``, and the ranks compare the sums. The interval follows from the cost: at most 0.2 % of the time.
"""

from __future__ import annotations

import math
import random
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lockstep.comm.collectives import Collectives
from lockstep.comm.dtensors import is_dtensor
from lockstep.errors import MismatchError
from lockstep.listener import Listener
from lockstep.recovery.run_state import RunState

_MOST_OF_TIME = 0.002
_MOST_STEPS = 1000


class PartedRanks(Listener):
    """Compares the states of the ranks of a run.

    Args:
        state: the run's.
        collectives: over all ranks.
    """

    def __init__(self, state: RunState, collectives: Collectives) -> None:
        self.have_parted = False
        """Whether a difference was found and reported."""
        self._state = state
        self._collectives = collectives
        self._next = 0
        """The step after which the next comparison is due."""
        self._checked: tuple[int, float] | None = None
        """The step and time of the last comparison."""

    def tick(self, step: int) -> None:
        """See Listener.

        Raises:
            MismatchError: the ranks have parted.
        """
        if step >= self._next and self._collectives.size > 1 and not self.have_parted:
            self._compare(step, with_stream=True)

    def before_save(self, step: int) -> None:
        """Compare the ranks before a checkpoint is saved. Every rank must call it. Raises MismatchError like ``tick``."""
        if self._collectives.size > 1 and (self._checked is None or self._checked[0] != step):
            self._compare(step, with_stream=False)  # fetching the next batch may have drawn

    def digest(self) -> int:
        """The digest of all compared state on this rank."""
        return _digest(dict(self._sums(with_stream=False)))

    def _compare(self, step: int, *, with_stream: bool) -> None:
        began = time.perf_counter()
        sums = dict(self._sums(with_stream=with_stream))
        digest = _digest(sums)
        cost_s = time.perf_counter() - began
        numbers = torch.tensor([digest, -digest, self._steps_until(step, began, cost_s)], dtype=torch.int64)
        highest, lowest, steps = self._collectives.all_reduce(numbers, "max").tolist()
        if highest != -lowest:
            self._refuse(step, sums)
        self._next = step + steps
        self._checked = (step, time.perf_counter())

    def _steps_until(self, step: int, now: float, cost_s: float) -> int:
        """Number of steps until the next comparison, given the cost of this one."""
        if self._checked is None or step <= self._checked[0]:
            return 1
        step_s = (now - self._checked[1]) / (step - self._checked[0])
        return max(1, min(_MOST_STEPS, math.ceil(cost_s / max(step_s * _MOST_OF_TIME, 1e-9))))

    def _refuse(self, step: int, sums: dict[str, Any]) -> None:
        self.have_parted = True
        everyone = self._collectives.all_gather_object(sums)
        since = "the beginning" if self._checked is None else f"step {self._checked[0]}"
        for name in dict.fromkeys(name for peer_sums in everyone for name in peer_sums):
            unlike = [rank for rank, peer_sums in enumerate(everyone) if peer_sums.get(name) != everyone[0].get(name)]
            if unlike:
                raise MismatchError(
                    f"the ranks have parted: after step {step}, {name} is not the same on rank 0 and on "
                    f"rank{'s' if len(unlike) > 1 else ''} {', '.join(map(str, unlike))} (it was after {since}). Outside of "
                    "batch.shards every rank must do the same with the same numbers: look for code there that depends on the "
                    "rank, on one shard's values (the loss of the last shard, say: use batch['loss']), on the time, or on a "
                    "separate generator. `lockstep verify` shows where. No checkpoint is written of this state."
                )

    def _sums(self, *, with_stream: bool) -> Iterator[tuple[str, Any]]:
        tensors: list[tuple[str, Tensor]] = []
        for name, value in self._state.compared():
            if not isinstance(value, Tensor):
                yield name, _text(value)
            elif not is_dtensor(value):
                tensors.append((name, value))
        if with_stream:
            yield "the random stream outside of batch.shards", _stream()
        yield from zip((name for name, _ in tensors), _add_bits([tensor for _, tensor in tensors]), strict=True)


def _digest(sums: dict[str, Any]) -> int:
    return zlib.crc32(repr(list(sums.items())).encode())


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {_add_bits([value])}"
    if isinstance(value, dict):
        return str({str(key): _text(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return str([_text(item) for item in value])
    return repr(value) if isinstance(value, (bool, int, float, str, bytes, type(None))) else type(value).__name__


def _stream() -> int:
    crc = zlib.crc32(torch.default_generator.get_state().numpy().tobytes())
    crc = zlib.crc32(repr(random.getstate()).encode(), crc)
    numpy = sys.modules.get("numpy")
    return crc if numpy is None else zlib.crc32(numpy.random.get_state()[1].tobytes(), crc)


def _add_bits(tensors: list[Tensor]) -> list[int]:
    """The sum of each tensor's bits as 64-bit integers, which wrap around instead of rounding, with one transfer per device.
    (For narrower integers PyTorch would first make a wide copy of the whole tensor.)"""
    sums: list[Tensor] = []
    for tensor in tensors:
        flat = tensor.detach()
        flat = (flat if flat.layout == torch.strided else flat.to_dense()).contiguous().reshape(-1)
        data = flat.view(torch.uint8) if flat.numel() else flat.new_zeros(0, dtype=torch.uint8)
        whole = data.numel() // 8 * 8
        # The result must not depend on the alignment in memory, which may differ between ranks.
        wide = (data if data.storage_offset() % 8 == 0 else data.clone())[:whole].view(torch.int64)
        sums.append(wide.sum() + data[whole:].sum(dtype=torch.int64))
    totals = [0] * len(sums)
    for device in {total.device for total in sums}:
        here = [number for number, total in enumerate(sums) if total.device == device]
        for number, value in zip(here, torch.stack([sums[number] for number in here]).tolist(), strict=True):
            totals[number] = value
    return totals
