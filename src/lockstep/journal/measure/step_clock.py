"""Splits the time of every step into parts, on each rank.

Each event of the loop ends an interval, which is charged to one part, so the parts add up to the whole by construction.
Between two exchanges each rank measures how long it is busy, and the ranks exchange that along with the numbers of the phase
(``loop.ledger``), without further messages. A rank that was busy for less than the busiest one has waited for it by the
difference; the rest of the time until the gradients are there is communication.

On a GPU the parts are timed by the GPU (``device_clock``). How long a rank is busy is timed by the script, which waits for the
GPU before each exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import override

from lockstep.journal.measure.device_clock import DeviceClock
from lockstep.journal.measure.split import LOADING, PARTS, Row, busy_of
from lockstep.listener import Listener, Stage

(DATA, COPY, FORWARD, BACKWARD, COMMUNICATION, WAITING, OPTIMIZER, LOGGING, CHECKPOINT, SCRIPT) = range(len(PARTS))
_USUAL = 10
"""Steps in the running mean of a step's time."""
SAVING = "saving a checkpoint"
IN_SCRIPT, _IN_OPTIMIZER = "in the script's code", "in the optimizer"
_BETWEEN_PASSES = "in the script's code between two passes"


def _charges(part: int, then: str) -> Callable[..., None]:
    """A method of StepClock for an event that ends an interval of this part, with the activity that follows.

    ``StepClock.charge`` is repeated here, since in a step of a small model each Python call counts.
    """

    def charge(self: StepClock, *_: Any) -> None:
        now_s = perf_counter()
        self._seconds[part] += now_s - self._last_s
        self._last_s = now_s
        if self._device is not None:
            self._device.charge(part)
        self.activity = then

    return charge


class Overlapping(Protocol):
    """Exchanges gradients during the backward pass."""

    waited_s: float
    """How long this rank waited for others in the latest backward pass, in seconds."""
    waited_in_forward_s: float
    """The same of the forward pass before it."""


class StepClock(Listener):
    """The clock of one process.

    Args:
        overlapping: read after each backward pass.
        held_s: how long checkpoints have held up training so far, in seconds.
        device: of this process.
    """

    stage = Stage.LATE

    def __init__(
        self,
        overlapping: Overlapping,
        held_s: Callable[[], float],
        device: torch.device,
    ) -> None:
        self.tell: Callable[[Sequence[Row], Sequence[float]], object] = lambda rows, busy: None
        """Called at the end of each phase, with the same values on every rank: the ranks' rows since the phase before, and how
        long each of them was busy, in seconds. For an instrument to set."""
        self._overlapping = overlapping
        self._held_so_far_s, self._held_s = held_s, 0.0
        self._seconds = [0.0] * len(PARTS)
        """By part, since the pass began."""
        self._transferred = [0.0] * len(PARTS)
        """The seconds that were transferred between parts; the GPU's clock does not know of them."""
        self._device = DeviceClock(device, len(PARTS)) if device.type != "cpu" else None
        self._at_exchange = list(self._seconds)
        """The value of ``_seconds`` at the ranks' last exchange."""
        self._exposed_s = 0.0
        """Time that this rank has waited for others in the backward passes of the current phase."""
        self._rows: Sequence[Row] = ()
        self._busy_s = 0.0
        self._last_s = perf_counter()
        """When the last interval ended."""
        self.num_steps = 0
        """Steps taken so far."""
        self.step_s = 0.0
        """The usual time of a step: a mean that favours recent ones."""
        self._step_began_s = self._last_s
        self.activity = IN_SCRIPT
        """What the main thread is doing, as of the last event (see ``doing``)."""
        self._is_in_pass = False
        self._is_in_optimizer = False
        """Whether an optimizer of the run is stepping; its closure may run a phase."""
        self._hook = register_optimizer_step_post_hook(self.after_optimizer)

    @property
    def doing(self) -> str:
        """What the main thread is doing, for the user. May be read by another thread."""
        # The last step of a pass that was left by `break` ends after it.
        return _BETWEEN_PASSES if self.activity == LOADING and not self._is_in_pass else self.activity

    def take(self) -> dict[str, float]:
        """The seconds of each part since the pass began, once the GPU has finished. Local."""
        self.charge(SCRIPT)
        if self._device is not None:
            self._device.read(wait=True)
        return self.so_far

    @property
    def so_far(self) -> dict[str, float]:
        """The same up to the last event, as far as the GPU has reached it. May be read by another thread."""
        seconds = self._seconds
        if self._device is not None:
            pairs = zip(self._device.seconds, self._transferred, strict=True)
            seconds = [max(0.0, measured_s + transferred_s) for measured_s, transferred_s in pairs]
        return dict(zip(PARTS, seconds, strict=True))

    def charge(self, part: int) -> None:
        """Count the time since the last event as this part."""
        now_s = perf_counter()
        self._seconds[part] += now_s - self._last_s
        self._last_s = now_s
        if self._device is not None:
            self._device.charge(part)

    def _transfer(self, source: int, target: int, seconds: float) -> None:
        """Count these seconds of one part as another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds
        if self._device is not None:
            self._transferred[source] -= seconds
            self._transferred[target] += seconds

    def close(self) -> None:
        """Remove the hook on optimizers."""
        self._hook.remove()

    # See Listener

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._seconds, self._transferred = [0.0] * len(PARTS), [0.0] * len(PARTS)
        if self._device is not None:
            self._device.begin()
        self._held_s = self._held_so_far_s()
        self._begin_phase()
        self._last_s = self._step_began_s = perf_counter()
        self._is_in_pass = True
        self.activity = LOADING

    @override
    def begin_step(self, step: int) -> None:
        self.charge(DATA)
        self.activity = IN_SCRIPT
        held_s, self._held_s = self._held_s, self._held_so_far_s()
        if self._held_s != held_s:  # checkpoints are saved before a step
            self._transfer(DATA, CHECKPOINT, self._held_s - held_s)
        if self._device is not None:
            self._device.read()

    begin_phase = _charges(SCRIPT, IN_SCRIPT)
    received = _charges(COPY, "in the forward pass")
    before_backward = _charges(FORWARD, "in the backward pass")

    @override
    def after_backward(self) -> None:
        self.charge(BACKWARD)
        self.activity = IN_SCRIPT
        waited_s = self._overlapping.waited_s
        if waited_s:
            self._transfer(BACKWARD, COMMUNICATION, waited_s)
            self._exposed_s += waited_s
            if before_s := self._overlapping.waited_in_forward_s:
                self._transfer(FORWARD, COMMUNICATION, before_s)
                self._exposed_s += before_s

    end_shard = _charges(SCRIPT, "ending a shard")

    @override
    def end_phase(self, phase: int) -> None:
        began_s, rows = self._last_s, self._rows
        self.charge(COMMUNICATION if rows else BACKWARD)  # a single process only adds up its gradients
        if rows:
            busy = busy_of(rows)
            exchange_s = self._exposed_s + self._last_s - began_s
            self._transfer(COMMUNICATION, WAITING, min(exchange_s, max(0.0, max(busy) - self._busy_s)))
            self.tell(rows, busy)
            self._begin_phase()
        self.activity = IN_SCRIPT

    @override
    def before_optimizer(self, *_: Any) -> None:
        self.charge(SCRIPT)
        self.activity = _IN_OPTIMIZER
        self._is_in_optimizer = True

    def after_optimizer(self, *_: Any) -> None:
        """An optimizer of this process, of the run or not, has stepped."""
        if self._is_in_optimizer:
            self.charge(OPTIMIZER)
            self.activity = IN_SCRIPT
            self._is_in_optimizer = False

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        self.charge(SCRIPT)
        self.activity = "logging"
        took_s, self._step_began_s = self._last_s - self._step_began_s, self._last_s
        self.step_s += (took_s - self.step_s) / min(self.num_steps + 1, _USUAL)
        self.num_steps += 1

    @override
    def drop(self) -> None:
        self.charge(SCRIPT)
        self._begin_phase()

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._is_in_pass = False
        self.activity = _BETWEEN_PASSES

    # Exchanges between ranks: implements ``loop.ledger.Clock``

    def device_finished(self) -> None:
        """What precedes is the backward pass."""
        self.charge(BACKWARD)

    def report(self, num_samples: int) -> list[float]:
        """This rank's ``Row`` since the last exchange. Local."""
        self.charge(SCRIPT)
        now, before = self._seconds, self._at_exchange
        data = now[DATA] - before[DATA]
        forward = now[COPY] - before[COPY] + now[FORWARD] - before[FORWARD]
        backward = now[BACKWARD] - before[BACKWARD]
        script = now[OPTIMIZER] - before[OPTIMIZER] + now[SCRIPT] - before[SCRIPT]
        self._busy_s = data + forward + backward + script
        return [float(num_samples), data, forward, backward, script, self._busy_s]

    def receive(self, rows: Sequence[Row]) -> None:
        """Keep the rows of all ranks until the phase ends."""
        self._rows = rows

    def _begin_phase(self) -> None:
        self._at_exchange = list(self._seconds)
        self._exposed_s, self._rows = 0.0, ()


class LoaderTimer(Listener):
    """Charges the time before the end of a pass, in which the loop waits for the loader. Must be the first listener."""

    stage = Stage.EARLY

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    @override
    def flush(self) -> None:
        self._clock.charge(DATA)


class PartTimer(Listener):
    """Charges what the listeners of the stages before do between steps to one part.

    Args:
        clock: of this process.
        part: to charge.
        stage: that follows. It must be the first listener of that.
        then: the activity that follows, for the user.
    """

    def __init__(self, clock: StepClock, part: int, stage: Stage, then: str) -> None:
        self.stage = stage
        self.tick = partial(_charges(part, then), clock)  # type: ignore[method-assign]
        self.flush = partial(clock.charge, part)  # type: ignore[method-assign]
