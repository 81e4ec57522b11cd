"""Larger micro-batches: what a process computes at once. Tried by running several shards, or several steps, as one, for as long
as that gains and fits into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lockstep.data.batches import map_tensors
from lockstep.data.sources import Deal
from lockstep.machine.memory import free_bytes
from lockstep.machine.sizes import size
from lockstep.measure.usage import peak_rss_bytes, reset_peak_rss
from lockstep.plan.shards import plan_step
from lockstep.tuning.numerics import Change
from lockstep.tuning.session import Session
from lockstep.tuning.windows import Fold, Windows

_MOST_BYTES = 0.8
"""The share of the free memory that a larger micro-batch may be expected to need."""
_MOST_STEP_S = 1.0
"""Steps of this duration are long enough: what they cost beside the batch no longer matters."""
_LEAST_GROWTH = 1 << 20
"""Growth of this process's memory that is not noise, in bytes."""


def micro_batches(session: Session, windows: Windows) -> list[Change]:
    """Micro-batches of all of this process's shards, if one process has several; else of two steps; and twice as many, ..."""
    assert windows.largest is not None
    plan, data = windows.largest
    config, world_size = session.config, session.world_size
    name = "larger micro-batches"
    if session.slowest(0.0 if data else 1.0):  # all ranks must agree: the steps that follow are theirs together
        return [Change(name=name, why_not="a process has no samples")]
    if not all(map(_is_of_tensors, data)):
        return [Change(name=name, why_not="batches hold more than tensors")]
    if world_size > 1 and len(plan.sizes) > 1:
        return [Change(name=name, why_not="several processes accumulate")]
    return [_Sizes(session, windows, plan.micro_steps[0].num_samples, plan.sizes, config.shards or 1).first()]


class _Sizes:
    """The sizes to try.

    Args:
        session: of this process.
        windows: takes the steps.
        now: samples of a micro-batch.
        sizes: samples of the global batches of a step.
        num_shards: V.
    """

    def __init__(self, session: Session, windows: Windows, now: int, sizes: tuple[int, ...], num_shards: int) -> None:
        self._session = session
        self._windows = windows
        self._now = now
        self._sizes = sizes
        self._num_shards = num_shards
        self._joins = session.world_size == 1
        """Whether shards and parts of a step can be run as one: those of other processes cannot."""
        self._bytes_each = 0.0

    def first(self) -> Change:
        """The smallest that is larger than now."""
        return self._change(1 if self._joins and self._samples(1) > self._now else 2)

    def _samples(self, times: int) -> int:
        return times * (sum(self._sizes) if self._joins else self._now)

    def _change(self, times: int) -> Change:
        samples = self._samples(times)
        words = []
        if times > 1 or len(self._sizes) > 1:
            words.append(f"batch_size={times * sum(self._sizes)}")
        if len(self._sizes) > 1:
            words.append("accumulate=1")
        if self._joins and self._num_shards > 1:
            words.append("shards=1")
        alters = "the order of sums, and the random numbers and BatchNorm statistics of shards"
        if times > 1:
            alters = f"the training ({times} batches become one step)"

        @contextlib.contextmanager
        def made() -> Iterator[None]:
            if self._session.on_gpu:
                torch.cuda.reset_peak_memory_stats(self._session.device)
            else:
                reset_peak_rss()
            before_bytes = self._peak()
            self._windows.fold = Fold(times, self._fold)
            try:
                yield
            finally:
                self._windows.fold = None
                self._note(samples, before_bytes)

        return Change(
            name=f"micro-batches of {samples} samples, now {self._now}",
            how=", ".join(words),
            made=made,
            alters=alters,
            remark=self._remark,
            larger=lambda step_s: self._larger(times, step_s),
        )

    def _fold(self, deals: list[Deal]) -> Deal:
        """One step from several: as many samples, which are those of the last one again and again, since batches of padded
        samples may differ in length."""
        plan, data = deals[-1]
        session, times = self._session, len(deals)
        if self._joins:
            micro_steps = plan.micro_steps
            merged = plan_step(plan.number, (times * sum(plan.sizes),), 0, 1, 1)
            return merged, [_repeated(data[0], times * len(micro_steps))]
        if plan.sizes[0] < self._num_shards:  # the last one of a pass, of which some shards have nothing
            return deals[-1]
        merged = plan_step(plan.number, (times * plan.sizes[0],), session.rank, session.world_size, self._num_shards)
        return merged, [_repeated(part, times) for part in data]

    def _larger(self, times: int, step_s: float) -> Change | None:
        needed = self._bytes_each * self._samples(2 * times)
        fits = self._session.slowest(needed / max(1.0, _MOST_BYTES * self._free())) <= 1
        return self._change(2 * times) if fits and 2 * times * step_s <= _MOST_STEP_S else None

    def _remark(self) -> str:
        if not self._bytes_each:
            return "memory a sample: too little to be measured"
        most = int(_MOST_BYTES * self._free() / self._bytes_each)
        return f"{size(int(self._bytes_each))} a sample, so about {most} samples at once fit into the memory that is free"

    def _note(self, samples: int, before_bytes: int) -> None:
        """Learn from the memory that steps with so many samples have needed."""
        if self._session.on_gpu:
            self._bytes_each = (self._peak() - torch.cuda.memory_allocated(self._session.device)) / samples
        elif (growth := self._peak() - before_bytes) >= _LEAST_GROWTH:
            # Of the steps before, with half as many samples, the allocator may have kept what they had used.
            self._bytes_each = max(self._bytes_each, 2 * growth / samples)

    def _peak(self) -> int:
        if self._session.on_gpu:
            return torch.cuda.max_memory_allocated(self._session.device)
        return peak_rss_bytes()

    def _free(self) -> float:
        if self._session.on_gpu:
            free, _ = torch.cuda.mem_get_info(self._session.device)
            cached = torch.cuda.memory_reserved(self._session.device) - torch.cuda.memory_allocated(self._session.device)
            return free + cached
        return free_bytes() / self._session.local_world_size


def _is_of_tensors(batch: Any) -> bool:
    """Whether it holds tensors with a dimension for samples, and nothing else."""
    if isinstance(batch, Mapping):
        return all(map(_is_of_tensors, batch.values()))
    if isinstance(batch, (list, tuple)):
        return all(map(_is_of_tensors, batch))
    return isinstance(batch, Tensor) and batch.ndim > 0


def _repeated(batch: Any, times: int) -> Any:
    return map_tensors(lambda tensor: torch.cat([tensor] * times), batch)
