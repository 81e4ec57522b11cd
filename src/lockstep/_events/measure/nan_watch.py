"""Detects NaN losses without making a GPU wait."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import Tensor
from typing_extensions import override

from lockstep._base.errors import LossError
from lockstep._events.measure.late_numbers import LateNumbers
from lockstep._listener import Listener

_Position = tuple[int, int, int | None]


class NanWatch(Listener):
    """A check of every loss for NaN: on the CPU immediately; on a GPU every ``every`` steps, once
    the values have been copied.

    Args:
        policy: ``stop`` (raise), ``warn``, or ``ignore``.
        rank: the rank of this process, for the message.
        every: steps between two checks of losses on a GPU.
        position: returns the current step, its phase, and shard.
    """

    def __init__(self, policy: str, rank: int, every: int, position: Callable[[], _Position]) -> None:
        self._policy = policy
        self._rank = rank
        self._every = every
        self._position = position
        self._waiting: list[tuple[_Position, Tensor]] = []
        self._copied: tuple[list[_Position], LateNumbers] | None = None

    @override
    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        """Raises:
        LossError: it is NaN, and the policy is ``stop``.
        """
        is_late = isinstance(weight, Tensor)
        # The mean over no tokens is NaN, and has the weight 0: it changes nothing.
        if self._policy == "ignore" or (not is_late and weight == 0):
            return
        if not loss.is_cpu:
            position = self._position()
            # What was copied an interval ago has arrived by now, so to read it waits for nothing.
            if self._waiting and position[0] >= self._waiting[0][0][0] + self._every:
                self._read()
                self._copy()
            loss = loss.detach().reshape(())
            # On the device, since to read the weight here would wait for it: a loss of no tokens
            # becomes 0.
            if isinstance(weight, Tensor):
                loss = loss.masked_fill(weight.to(loss.device) == 0, 0.0)
            self._waiting.append((position, loss))
        elif (number := loss.item()) != number and weight != 0:
            self._report(self._position())

    @override
    def flush(self) -> None:
        """Checks all remaining losses, and waits for them."""
        self._read()
        if self._waiting:
            self._copy()
            self._read()

    def _copy(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._copied = [position for position, _ in waiting], LateNumbers([loss for _, loss in waiting])

    def _read(self) -> None:
        if self._copied is None:
            return
        (positions, losses), self._copied = self._copied, None
        for position, number in zip(positions, losses.read().tolist(), strict=True):
            if number != number:
                self._report(position)

    def _report(self, position: _Position) -> None:
        step, _, shard = position
        message = f"the loss is NaN in step {step}, shard {shard}, on rank {self._rank}"
        if self._policy == "stop":
            raise LossError(
                f"{message}, so all weights would become NaN. Find the sample with `lockstep replay RUN --step nan "
                "--blame`, or continue with on_nan='warn' (--on-nan warn).",
                code="loss-nan",
            )
        warnings.warn(f"lockstep: {message}", RuntimeWarning, stacklevel=2)
