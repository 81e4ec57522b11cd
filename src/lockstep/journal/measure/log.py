"""Averages logged values over all shards of all ranks, without making a step wait.

Values stay on the rank that logged them. Every ``every`` steps a *window* of steps is closed, and the ranks exchange its sums
asynchronously: first they check whether all have logged the same names; one window later they exchange the sums; another window
later they read them. Each result has then long arrived. ``flush`` completes all exchanges.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from lockstep.base.errors import ConfigError, UsageError
from lockstep.journal.measure.late_numbers import LateNumbers
from lockstep.listener import Listener
from lockstep.world.comm.plain import all_gather_plain

Value = float | Tensor
Row = tuple[int, int, dict[str, float]]
"""Epoch, step, and the averages of that step."""
Key = tuple[int, int]
"""Epoch and step."""
_Values = tuple[list[Key], list[dict[str, float]], list[str], Tensor]
"""Of a window: its steps; the common values of each; names; and a float64 table of shape (steps, names, 2) on the CPU, of
weighted sums and weights."""
_IS_DONE = object()


@dataclass
class _Step:
    epoch: int
    step: int
    sums: dict[str, Value] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    common: dict[str, Value] = field(default_factory=dict)
    """Values logged outside of ``batch.shards``, which are the same on every rank."""


class MetricLog(Listener):
    """The log of one process.

    Args:
        every: steps in a window.
        write: called with each finished step's averages, in order, on every rank.
    """

    def __init__(self, world_size: int, every: int, write: Callable[[Row], None]) -> None:
        self._world_size = world_size
        self._every = every
        self._write = write
        self._names: list[str] = []
        self._current: _Step | None = None
        self._closed: list[_Step] = []
        self._windows: list[Iterator[None]] = []
        """Those that are being exchanged, oldest first."""
        self._has_begun = False
        """Whether a step has ended. Until then all values are common, and need no exchange."""

    def add(self, epoch: int, step: int, weight: float | Tensor | None, values: dict[str, Any]) -> None:
        """Record values. Local; a value on a GPU stays there.

        Args:
            weight: of the running shard, maybe a scalar tensor on a GPU; None: no shard is running, and the values are the
                same on every rank.
            values: by name. Those that are None are ignored.

        Raises:
            ConfigError: a value is neither a number nor a tensor with one element, or the weight is not a count.
        """
        if not isinstance(weight, Tensor) and weight is not None and not 0 <= weight < math.inf:
            raise ConfigError(f"log(weight={weight}): a weight is a count, 0 or more: of tokens, say")
        if self._current is None or self._current.step != step:
            self._close_step()
            self._current = _Step(epoch, step)
        current = self._current
        for name, value in values.items():
            if value is None:
                continue
            number = _number(name, value)
            if weight is None:
                current.common[name] = number
                continue
            if isinstance(weight, Tensor):
                number = _weighted(number, weight)
            elif weight == 0:  # a mean over no samples may be NaN, and 0 x NaN is NaN
                continue
            else:
                number = number * weight
            if name not in self._names:
                self._names = sorted([*self._names, name])
            if name in current.sums:
                current.sums[name] = current.sums[name] + number
                current.weights[name] = current.weights[name] + weight  # not in place: a tensor may be the ledger's, too
            else:
                current.sums[name], current.weights[name] = number, weight

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
        """Starts or continues exchanges if that is due, without waiting."""
        if self._world_size == 1 and not self._closed and not self._windows:
            return
        if self._world_size == 1 and self._on_cpu():
            self._write_alone()
        elif step % self._every == 0:
            self._advance()
            self._close_window()

    @override
    def flush(self) -> None:
        self._close_step()
        self.complete()

    def complete(self) -> None:
        """Write the values of all steps that have ended. Every rank must call it, at the same point."""
        if not self._has_begun:
            self._write_alone()
            return
        self._close_window()
        while self._windows:
            self._advance()

    def _write_alone(self) -> None:
        steps, self._closed = self._closed, []
        for done in steps:
            values = {name: float(total) / float(done.weights[name]) for name, total in done.sums.items()}
            self._write((done.epoch, done.step, {**values, **_floats(done.common)}))

    def _on_cpu(self) -> bool:
        if self._windows:
            return False
        return all(
            not isinstance(value, Tensor) for step in self._closed for value in (*step.sums.values(), *step.common.values())
        )

    def _close_window(self) -> None:
        steps, self._closed = self._closed, []
        if steps or self._world_size > 1:
            window = self._exchange(steps)
            next(window)
            self._windows.append(window)

    def _advance(self) -> None:
        """Take every window to its next stage, oldest first: the same order on every rank."""
        self._windows = [window for window in self._windows if next(window, _IS_DONE) is not _IS_DONE]

    def _exchange(self, steps: list[_Step]) -> Iterator[None]:
        """Average the values of a window, and write them. At each ``yield`` a window's time passes, by when what was begun
        has long arrived."""
        keys, names = [(step.epoch, step.step) for step in steps], self._names
        common = [_floats(step.common) for step in steps]
        table, cells, late = _tabulate(steps, names)
        is_alone = self._world_size == 1
        if not is_alone:
            signature = _signature(keys, names, common)
            agreement = torch.tensor([signature, -signature])
            work: Any = dist.all_reduce(agreement, op=dist.ReduceOp.MAX, async_op=True)
        yield
        if late is not None:
            table[tuple(torch.tensor(cells).T)] = late.read()
        if not is_alone:
            work.wait()
            highest, lowest = agreement.tolist()
            if highest != -lowest:
                keys, common, names, table = self._merge_by_name(keys, common, names, table)
            elif table.numel() > 0:  # else all is the same on every rank
                work = dist.all_reduce(table, async_op=True)
                yield
                work.wait()
        for (epoch, step), same, cells in zip(keys, common, table.tolist(), strict=True):
            values = {name: total / weight for name, (total, weight) in zip(names, cells, strict=True) if weight > 0}
            self._write((epoch, step, {**values, **same}))

    def _merge_by_name(self, keys: list[Key], common: list[dict[str, float]], names: list[str], table: Tensor) -> _Values:
        """Exchange everything by name, since ranks have logged different names or steps (one had no samples, say)."""
        everyones = all_gather_plain((keys, common, names, table))
        keys = sorted({key for keys, _, _, _ in everyones for key in keys}, key=lambda key: key[1])
        names = self._names = sorted({*self._names, *(name for _, _, names, _ in everyones for name in names)})
        merged = torch.zeros(len(keys), len(names), 2, dtype=torch.float64)
        common = [{} for _ in keys]
        for rank, (theirs, their_common, their_names, their_table) in enumerate(everyones):
            columns = [names.index(name) for name in their_names]
            for row, key in enumerate(theirs):
                merged[keys.index(key), columns] += their_table[row]
                _compare(common[keys.index(key)], their_common[row], rank, key[1])
        return keys, common, names, merged


def _compare(known: dict[str, float], theirs: dict[str, float], rank: int, step: int) -> None:
    """Check that common values are the same on all ranks.

    Raises:
        UsageError: a rank has another value.
    """
    for name, value in theirs.items():
        expected = known.setdefault(name, value)
        if expected != value and not (math.isnan(expected) and math.isnan(value)):
            raise UsageError(
                f"team.log({name}=...) in step {step}, outside of batch.shards: it is {expected:.9g} on rank 0 and "
                f"{value:.9g} on rank {rank}. Values logged there must be the same on all ranks. For a value of one shard, "
                f"log the mean over the global batch: batch.add({name}=...) inside, and team.log({name}=batch[{name!r}]); "
                "or call team.log() inside."
            )


def _signature(*values: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=7).digest(), "little")


def _floats(values: dict[str, Value]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _number(name: str, value: Any) -> Value:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigError(
                f"log({name}=...): a tensor of shape {tuple(value.shape)}: log one number a shard, its mean say"
            )
        value = value.detach().double().reshape(())
        return value if value.device.type != "cpu" else float(value)
    if isinstance(value, (bool, int, float)) or hasattr(value, "__float__"):
        return float(value)
    raise ConfigError(f"log({name}={value!r}): a value must be a number, or a tensor with one element")


def _weighted(number: float | Tensor, weight: Tensor) -> Tensor:
    """The product on a GPU. A mean over no samples may be NaN, and counts for nothing."""
    scale = weight.to(number.device) if isinstance(number, Tensor) else weight
    return (number * scale).masked_fill(scale == 0, 0.0)


def _tabulate(steps: list[_Step], names: list[str]) -> tuple[Tensor, list[tuple[int, int, int]], LateNumbers | None]:
    """Sums and weights as a table on the CPU; its cells whose numbers are on a GPU, and these; None: there are none."""
    table = torch.zeros(len(steps), len(names), 2, dtype=torch.float64)
    cells: list[tuple[int, int, int]] = []
    on_gpu: list[Tensor] = []
    for row, step in enumerate(steps):
        for name, value in step.sums.items():
            column = names.index(name)
            for part, number in enumerate((value, step.weights[name])):
                if isinstance(number, Tensor):
                    cells.append((row, column, part))
                    on_gpu.append(number)
                else:
                    table[row, column, part] = number
    return table, cells, LateNumbers(on_gpu) if on_gpu else None
