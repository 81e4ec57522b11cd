"""Splits the time of every step into its parts, on each rank, as it passes.

Each event that the loop tells of ends a stretch of time and says what it was spent on, so the parts add up to the whole by
construction. Between two meetings of the ranks each measures for how long it was busy; they tell each other with the numbers
of the phase (``loop.ledger``), for no message more. Whoever was busy for less than the busiest rank has waited for it by the
difference; what is left of the time until the gradients are there is communication.

Training on a GPU, the parts are timed by the GPU (``device_clock``), and what a rank was busy with by the script, which waits
for the GPU before the ranks meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from lockstep.explain.device_clock import DeviceClock
from lockstep.explain.slow import busy_of
from lockstep.explain.split import PARTS
from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep

(DATA, COPY, FORWARD, BACKWARD, COMMUNICATION, WAITING, OPTIMIZER, LOGGING, CHECKPOINT, SCRIPT) = range(len(PARTS))
_USUAL = 10
LOADING, SAVING = "getting a batch from the loader", "saving a checkpoint"
_IN_SCRIPT, _IN_OPTIMIZER = "in the script's code", "in the optimizer"


def _ends(part: int, then: str) -> Callable[..., None]:
    """A method of a StepClock for events that say no more than what the time before them was spent on, and what comes then.
    Made here, not written out with a call of ``spent_on``: in a step of a small model each call in Python counts."""

    def ended(self: StepClock, *_: Any) -> None:
        """See Listener."""
        now = perf_counter()
        self._seconds[part] += now - self._now
        self._now = now
        if self._device is not None:
            self._device.spent_on(part)
        self.activity = then

    return ended


class Overlapping(Protocol):
    """Gradients that are exchanged while the backward pass still runs."""

    waited_s: float
    """For how long this rank waited for the others in the newest backward pass."""


class StepClock(Listener):
    """The clock of one process.

    Args:
        overlapping: asked after each backward pass.
        held_s: for how long training has stood still for checkpoints, up to now.
        tell: called at the end of each phase with what all ranks were busy with since the phase before: for each rank, its
            samples, the seconds of each of ``ACTIVITIES`` and their sum; and these sums. The same on every rank.
        device: of this process; a GPU has a clock of its own.
    """

    def __init__(
        self,
        overlapping: Overlapping,
        held_s: Callable[[], float],
        tell: Callable[[Sequence[Sequence[float]], Sequence[float]], None],
        device: torch.device,
    ) -> None:
        self._overlapping = overlapping
        self._tell = tell
        self._held_so_far_s, self._held_s = held_s, 0.0
        self._seconds = [0.0] * len(PARTS)
        self._moved = [0.0] * len(PARTS)
        """What was taken from one part and given to another."""
        self._device = DeviceClock(device, len(PARTS)) if device.type == "cuda" else None
        self._at_meeting = list(self._seconds)
        """The same, when the ranks last met."""
        self._exposed_s = 0.0
        """Of the phase at hand: waited for the others within backward passes."""
        self._rows: Sequence[Sequence[float]] = ()
        self._busy_s = 0.0
        self._now = perf_counter()
        self.num_steps = 0
        """Taken so far."""
        self.step_s = 0.0
        """How long one usually takes: a mean in which newer ones count for more."""
        self._step_began_s = self._now
        self.activity = _IN_SCRIPT
        """What the main thread does now, for the user; read by another thread."""
        self._is_in_optimizer = False
        """Of one of the run, perhaps in a phase within its closure."""
        self._hook = register_optimizer_step_post_hook(self.after_optimizer)

    def take(self) -> dict[str, float]:
        """The seconds of each part since the pass began. Local."""
        self.spent_on(SCRIPT)
        if self._device is not None:
            self._device.read(wait=True)
        return self.so_far

    @property
    def so_far(self) -> dict[str, float]:
        """The same up to the newest event, as far as the GPU has come. May be read by another thread."""
        seconds = self._seconds
        if self._device is not None:
            seconds = [max(0.0, there + moved) for there, moved in zip(self._device.seconds, self._moved, strict=True)]
        return dict(zip(PARTS, seconds, strict=True))

    def spent_on(self, part: int) -> None:
        """The time since the last event was spent on this."""
        now = perf_counter()
        self._seconds[part] += now - self._now
        self._now = now
        if self._device is not None:
            self._device.spent_on(part)

    def _move(self, source: int, target: int, seconds: float) -> None:
        """So much of the time of one part belongs to another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds
        if self._device is not None:
            self._moved[source] -= seconds
            self._moved[target] += seconds

    def close(self) -> None:
        """Look at optimizers no more."""
        self._hook.remove()

    # See Listener

    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        """See Listener."""
        self._seconds, self._moved = [0.0] * len(PARTS), [0.0] * len(PARTS)
        if self._device is not None:
            self._device.begin()
        self._held_s = self._held_so_far_s()
        self._begin_phase()
        self._now = self._step_began_s = perf_counter()
        self.activity = LOADING

    def begin_step(self, step: int) -> None:
        """See Listener."""
        self.spent_on(DATA)
        self.activity = _IN_SCRIPT
        held_s, self._held_s = self._held_s, self._held_so_far_s()
        if self._held_s != held_s:
            self._move(DATA, CHECKPOINT, self._held_s - held_s)  # they are saved before a step
        if self._device is not None:
            self._device.read()

    begin_phase = _ends(SCRIPT, _IN_SCRIPT)

    received = _ends(COPY, "in the forward pass")

    before_backward = _ends(FORWARD, "in the backward pass")

    def after_backward(self) -> None:
        """See Listener."""
        self.spent_on(BACKWARD)
        self.activity = _IN_SCRIPT
        waited_s = self._overlapping.waited_s
        if waited_s:
            self._move(BACKWARD, COMMUNICATION, waited_s)
            self._exposed_s += waited_s

    end_shard = _ends(SCRIPT, "ending a shard")

    def end_phase(self, phase: int) -> None:
        """See Listener."""
        met_s, before_s = self._exposed_s, self._now
        self.spent_on(COMMUNICATION if self._rows else BACKWARD)  # one process has nobody to meet: it adds up its gradients
        met_s += self._now - before_s
        if self._rows:
            busy = busy_of(self._rows)
            waiting_s = min(met_s, max(0.0, max(busy) - self._busy_s))
            self._move(COMMUNICATION, WAITING, waiting_s)
            self._tell(self._rows, busy)
            self._begin_phase()
        self.activity = _IN_SCRIPT

    def before_optimizer(self, *_: Any) -> None:
        """See Listener."""
        self.spent_on(SCRIPT)
        self.activity = _IN_OPTIMIZER
        self._is_in_optimizer = True

    def after_optimizer(self, *_: Any) -> None:
        """An optimizer has acted: any of the process."""
        if self._is_in_optimizer:
            self.spent_on(OPTIMIZER)
            self.activity = _IN_SCRIPT
            self._is_in_optimizer = False

    def end_step(self, step: int, num_samples: int) -> None:
        """See Listener."""
        self.spent_on(SCRIPT)
        self.activity = "logging"
        took_s, self._step_began_s = self._now - self._step_began_s, self._now
        self.step_s += (took_s - self.step_s) / min(self.num_steps + 1, _USUAL)
        self.num_steps += 1

    def drop(self) -> None:
        """See Listener."""
        self.spent_on(SCRIPT)
        self._begin_phase()

    def end_pass(self, step: int, *, exhausted: bool) -> None:
        """See Listener."""
        self.activity = "in the script's code between two passes"

    # What the ranks tell each other

    def report(self, num_samples: int) -> list[float]:
        """This rank is ready to meet the others: what it was busy with since they last met. Local.

        Args:
            num_samples: those that it has had in the phase.
        """
        self.spent_on(SCRIPT)
        now, before = self._seconds, self._at_meeting
        data = now[DATA] - before[DATA]
        forward = now[COPY] - before[COPY] + now[FORWARD] - before[FORWARD]
        backward = now[BACKWARD] - before[BACKWARD]
        script = now[OPTIMIZER] - before[OPTIMIZER] + now[SCRIPT] - before[SCRIPT]
        self._busy_s = data + forward + backward + script
        return [float(num_samples), data, forward, backward, script, self._busy_s]

    def computed(self) -> None:
        """This rank has waited for its GPU, which runs behind the script. Local."""
        self.spent_on(BACKWARD)

    def reported(self, rows: Sequence[Sequence[float]]) -> None:
        """What all ranks have reported, by rank. Local."""
        self._rows = rows

    def _begin_phase(self) -> None:
        self._at_meeting = list(self._seconds)
        self._exposed_s, self._rows = 0.0, ()


class Aside(Listener):
    """Counts micro-steps that an audit computes once more, which the others are not told of, and what comes before them since
    the phase began: waiting for their samples, which their owner sends."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def begin_shard(self, micro: MicroStep) -> None:
        """See Listener."""
        self._clock.spent_on(WAITING)
        self._clock.activity = "in an audit"

    def end_shard(self) -> None:
        """See Listener."""
        self._clock.spent_on(LOGGING)
        self._clock.activity = _IN_SCRIPT


class Loaded(Listener):
    """The first of the listeners: what comes before the end of a pass was spent on waiting for the loader."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def flush(self) -> None:
        """See Listener."""
        self._clock.spent_on(DATA)


class Spent(Listener):
    """Counts what the listeners before it do between steps as one part of the time.

    Args:
        clock: that counts.
        part: of the time.
        then: what the thread does next, for the user.
    """

    def __init__(self, clock: StepClock, part: int, then: str) -> None:
        self.tick = partial(_ends(part, then), clock)  # type: ignore[method-assign]
        self.flush = partial(clock.spent_on, part)  # type: ignore[method-assign]
