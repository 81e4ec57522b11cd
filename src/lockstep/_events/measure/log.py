"""Writes logged values, which must be the same on all ranks, without making a step wait for other
ranks.

Every ``every`` steps a *window* of steps is closed, and the ranks begin to compare a digest of its
values. One window later, when the comparison has long finished, the values are written.
``complete`` finishes immediately."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from lockstep._base.errors import ConfigError, UsageError
from lockstep._listener import Listener
from lockstep._world.comm.plain import all_gather_plain

Value = float | Tensor
Row = tuple[int, int, dict[str, float], tuple[str, ...]]
"""The epoch, the step, the values of that step, and the names of values that were logged between
two passes or after an evaluation."""


class MetricLog(Listener):
    """The log of one process.

    Args:
        every: steps in a window.
        write: called with each finished step's values, in order, on every rank.
    """

    def __init__(self, world_size: int, every: int, write: Callable[[Row], None]) -> None:
        self._world_size = world_size
        self._every = every
        self._write = write
        self._current: tuple[int, int, dict[str, Value], dict[str, None]] | None = None
        self._closed: list[tuple[int, int, dict[str, Value], dict[str, None]]] = []
        self._compared: tuple[list[Row], Tensor, Any] | None = None
        """The window that the ranks compare: its values, the digest (and its negative), and the
        work that finds extremes."""
        self._is_in_pass = False
        self._evaluated_after = -1
        """The step in which, or after which, the newest evaluation took place."""
        self._has_begun = False
        """Whether a step has finished. Until then nothing is compared: ranks of a script that takes
        no step may exit at different times."""

    def add(self, epoch: int, step: int, values: dict[str, Any]) -> None:
        """Records values. Local; a value on a GPU stays there.

        Args:
            values: the values by name. Values that are None are ignored.

        Raises:
            ConfigError: a value is neither a number nor a tensor with one element.
        """
        if self._current is None or self._current[1] != step:
            self._close_step()
            # The last is a set of names. A dict keeps their order, which the ranks' digest depends
            # on.
            self._current = epoch, step, {}, {}
        given = {name: _number(name, value) for name, value in values.items() if value is not None}
        self._current[2].update(given)
        if step == self._evaluated_after or not self._is_in_pass:
            self._current[3].update(dict.fromkeys(given))

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._is_in_pass = True

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._is_in_pass = False

    @override
    def evaluated(self, step: int, results: Mapping[str, float]) -> None:
        self._evaluated_after = step

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        self._has_begun = True
        if self._current is not None:
            self._close_step()

    def _close_step(self) -> None:
        if self._current is not None:
            self._closed.append(self._current)
            self._current = None

    @override
    def drop(self) -> None:
        self._current = None

    @override
    def tick(self, step: int) -> None:
        """Closes a window if it is due."""
        # With one process there is nothing to compare, so values are written in their step, except
        # values on a device: to read one would wait for it.
        if step % self._every == 0:
            self._close_window()
        elif self._closed and self._world_size == 1:
            on_device = any(isinstance(value, Tensor) for _, _, values, _ in self._closed for value in values.values())
            if not on_device:
                self._close_window()

    @override
    def flush(self) -> None:
        self._close_step()
        self.complete()

    def complete(self) -> None:
        """Writes the values of all finished steps. Every rank must call it, at the same point."""
        self._close_window()
        self._end_comparison()

    def _close_window(self) -> None:
        self._end_comparison()
        closed, self._closed = self._closed, []
        rows = [
            (epoch, step, {name: float(value) for name, value in values.items()}, tuple(apart))
            for epoch, step, values, apart in closed
        ]
        if self._world_size > 1 and self._has_begun:
            # The text of a float is exact, so equal digests mean bit-identical values. 7 bytes are
            # 56 bits: the number fits into int64, and so does its negative. The largest of both
            # over all ranks are the highest and minus the lowest digest, so one reduction shows
            # whether all are equal.
            signature = int.from_bytes(hashlib.blake2b(repr(rows).encode(), digest_size=7).digest(), "little")
            extremes = torch.tensor([signature, -signature])
            self._compared = rows, extremes, dist.all_reduce(extremes, op=dist.ReduceOp.MAX, async_op=True)
        else:
            self._write_all(rows)

    def _end_comparison(self) -> None:
        if self._compared is None:
            return
        (rows, extremes, work), self._compared = self._compared, None
        # It began a window ago (except at the end), so it has arrived unless a rank is that far
        # behind.
        work.wait()
        highest, lowest = extremes.tolist()
        self._write_all(rows if highest == -lowest else _merge(all_gather_plain(rows)))

    def _write_all(self, rows: list[Row]) -> None:
        for row in rows:
            self._write(row)


def _merge(by_rank: list[list[Row]]) -> list[Row]:
    """Returns what the ranks have logged together, if some have not logged everything.

    Raises:
        UsageError: two ranks have logged different values.
    """
    merged: dict[tuple[int, int], dict[str, float]] = {}
    all_apart: dict[tuple[int, int], dict[str, None]] = {}
    for rank, rows in enumerate(by_rank):
        for epoch, step, values, apart in rows:
            known = merged.setdefault((step, epoch), {})
            all_apart.setdefault((step, epoch), {}).update(dict.fromkeys(apart))
            for name, value in values.items():
                expected = known.setdefault(name, value)
                if expected != value and not (math.isnan(expected) and math.isnan(value)):
                    raise UsageError(
                        f"team.log({name}=...) in step {step}: the value is {expected:.9g} on one rank and {value:.9g} "
                        f"on rank {rank}, but must be the same on all. To log the mean of a shard's value over the "
                        f"global batch: batch.add({name}=...) inside batch.shards, then team.log({name}=batch[{name!r}]).",
                        code="log-differs",
                    )
    return [(*key[::-1], values, tuple(all_apart[key])) for key, values in sorted(merged.items())]


def _number(name: str, value: Any) -> Value:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigError(
                f"log({name}=...): the tensor has shape {tuple(value.shape)}. Log one number, for example its mean.",
                code="log-not-a-number",
            )
        value = value.detach().double().reshape(())
        return value if value.device.type != "cpu" else float(value)
    if isinstance(value, (bool, int, float)) or hasattr(value, "__float__"):
        return float(value)
    raise ConfigError(f"log({name}={value!r}): expected a number, or a tensor with one element.", code="log-not-a-number")
