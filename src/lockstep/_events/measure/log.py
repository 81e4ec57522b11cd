"""Writes logged values, which must be the same on all ranks, without a message for them.

Every ``every`` steps a *window* of steps is closed. A digest of its values goes along when the
ranks next agree on something between steps (``_loop/between.py``), which is about twice a second;
then they are written. ``complete`` does so immediately."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lockstep._base.errors import ConfigError, UsageError
from lockstep._listener import Listener
from lockstep._world.comm.collectives import Collectives

Value = float | Tensor
Row = tuple[int, int, dict[str, float], tuple[str, ...]]
"""The epoch, the step, the values of that step, and the names of values that were logged between
two passes or after an evaluation."""


class MetricLog(Listener):
    """The log of one process. A topic on which the ranks agree between steps.

    Args:
        collectives: over all ranks.
        every: steps in a window.
        write: called with each finished step's values, in order, on every rank.
    """

    def __init__(self, collectives: Collectives, every: int, write: Callable[[Row], None]) -> None:
        self._collectives = collectives
        self._is_alone = collectives.size == 1
        self._every = every
        self._write = write
        self._current: tuple[int, int, dict[str, Value], dict[str, None]] | None = None
        self._closed: list[tuple[int, int, dict[str, Value], dict[str, None]]] = []
        self._num_in_windows = 0
        """How many of the closed steps are in windows that are closed, too."""
        self._has_window = False
        """Whether a window was closed whose values are still to be compared. The same on every
        rank; the number of steps with values need not be."""
        self._compared: list[Row] = []
        """The values that the ranks compare now."""
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
        """Ends the step, and its window if it is the last of one."""
        self._has_begun = True
        if self._current is not None:
            self._close_step()
        if step % self._every == 0:
            self._has_window, self._num_in_windows = True, len(self._closed)
        # With one process there is nothing to compare, so values are written in their step, except
        # values on a device: to read one would wait for it.
        if self._closed and self._is_alone and (self._has_window or not self._are_on_device()):
            self.complete()

    def _are_on_device(self) -> bool:
        return any(isinstance(value, Tensor) for _, _, values, _ in self._closed for value in values.values())

    def _close_step(self) -> None:
        if self._current is not None:
            self._closed.append(self._current)
            self._current = None

    @override
    def abandon_step(self) -> None:
        self._current = None

    @override
    def flush(self) -> None:
        self._close_step()
        self.complete()

    def complete(self) -> None:
        """Writes the values of all finished steps. Every rank must call it, at the same point."""
        rows = self._take(len(self._closed))
        if self._is_alone or not self._has_begun:
            self._write_all(rows)
        else:
            largest = self._collectives.all_reduce(torch.tensor(_range_of(rows)), "max").tolist()
            self._write_compared(rows, largest)

    # Topic of `_loop/between.py`

    def is_due(self, step: int) -> bool:
        """Whether the ranks must compare a window after this step: never, they do so when another
        topic is due."""
        return False

    def propose(self, step: int) -> list[int] | None:
        """Returns the digest of this rank's values and its negative, if a window is closed."""
        if not self._has_window:
            return None
        self._compared = self._take(self._num_in_windows)
        return _range_of(self._compared)

    def settle(self, step: int, largest: Sequence[int]) -> None:
        """Writes the values of the windows. Every rank must call it.

        Raises:
            UsageError: two ranks have logged different values.
        """
        rows, self._compared = self._compared, []
        self._write_compared(rows, largest)

    def _take(self, number: int) -> list[Row]:
        """Removes and returns the values of closed steps, the oldest ones. Those on a device are
        waited for."""
        taken, self._closed = self._closed[:number], self._closed[number:]
        self._has_window, self._num_in_windows = False, 0
        return [
            (epoch, step, {name: float(value) for name, value in values.items()}, tuple(apart))
            for epoch, step, values, apart in taken
        ]

    def _write_compared(self, rows: list[Row], largest: Sequence[int]) -> None:
        highest, lowest = largest
        self._write_all(rows if highest == -lowest else _merge(self._collectives.all_gather_plain(rows)))

    def _write_all(self, rows: list[Row]) -> None:
        for row in rows:
            self._write(row)


def _range_of(rows: list[Row]) -> list[int]:
    """Returns the digest of values and its negative. The maxima of both over all ranks are the
    highest digest and minus the lowest, which show whether all are equal."""
    # The text of a float is exact, so equal digests mean bit-identical values. 7 bytes are 56 bits:
    # the number fits into int64, and so does its negative.
    digest = int.from_bytes(hashlib.blake2b(repr(rows).encode(), digest_size=7).digest(), "little")
    return [digest, -digest]


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
