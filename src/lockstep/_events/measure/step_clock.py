"""Splits the time of every step into parts, on each rank.

::

    marks    LOADING   IN_SCRIPT  BEGINNING  IN_FORWARD  IN_BACKWARD  ENDING  | IN_SCRIPT  ...
    charged   data      script     copy       forward     backward     copy   |  script
                                                                              |
                                              the ranks exchange gradients: communication, of which
                                              max(busy) - own busy is waiting for the busiest rank

Each event of the loop is a *mark*: the activity that begins, and the time. So a step is a line of
intervals, each charged to one part, and the parts add up to the whole by construction. Marks are
counted together, at each exchange or every few steps. Between two exchanges each rank measures how
long it is busy, and the ranks exchange that with the numbers of the phase (``_loop/exchange.py``),
without further messages. A rank that was busy for less than the busiest one has waited for it by
the difference; the rest of the time until the gradients are there is communication.

On a GPU the parts are timed by the GPU (``device_clock``). How long a rank is busy is timed by the
script, which waits for the GPU before each exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch
from typing_extensions import override

from lockstep._events.measure.device_clock import DeviceClock
from lockstep._events.measure.split import LOADING, PARTS, Row, busy_of
from lockstep._listener import Listener, Stage
from lockstep._plan.shards import StepPlan

(DATA, COPY, FORWARD, BACKWARD, COMMUNICATION, WAITING, OPTIMIZER, LOGGING, CHECKPOINT, SCRIPT) = range(len(PARTS))
_USUAL = 10
"""The number of steps in the running mean of a step's duration."""
_MANY = 100
"""The number of marks from which on they are counted: some eight steps of a single shard have as
many. To count them in each step of a small model takes longer, since the caches have lost the code
meanwhile."""
IN_SCRIPT, _IN_OPTIMIZER = "in the script's code", "in the optimizer"
BEGINNING, IN_FORWARD, IN_BACKWARD, ENDING = (
    "beginning a phase",
    "in the forward pass",
    "in the backward pass",
    "ending a shard",
)
IN_AUDIT, IN_LOGGING = "in an audit", "logging"
AGREEING = "agreeing with the other ranks between two steps"
_EXCHANGING, _BETWEEN_PASSES = "exchanging gradients", "in the script's code between two passes"
_PART_OF = {
    LOADING: DATA,
    IN_SCRIPT: SCRIPT,
    BEGINNING: COPY,  # unless the process has no shards
    IN_FORWARD: FORWARD,
    IN_BACKWARD: BACKWARD,
    # Until the next shard's samples are there. After the last shard see `report` and `end_phase`.
    ENDING: COPY,
    _IN_OPTIMIZER: OPTIMIZER,
    IN_LOGGING: LOGGING,
    _EXCHANGING: COMMUNICATION,
    IN_AUDIT: LOGGING,
    AGREEING: WAITING,  # for the ranks that are not there yet: the message itself is a few numbers
    _BETWEEN_PASSES: SCRIPT,
}
"""The part that an activity is charged to, unless ``StepClock.charge`` sets another one."""

Mark = Callable[[tuple[str, float]], object]
"""The type of the function that is called with an activity that begins, and the time by
``perf_counter``."""


class HoldsUp(Protocol):
    """An object that saves checkpoints."""

    pause_s: float
    """The seconds for which training has waited for checkpoints."""


class Overlapping(Protocol):
    """An object that exchanges gradients during the backward pass."""

    waited_s: float
    """The seconds for which this rank waited for others in the latest backward pass."""
    waited_in_forward_s: float
    """The seconds for which this rank waited for others in the forward pass before it."""


class StepClock(Listener):
    """The clock of one process.

    Args:
        saving: what saves checkpoints.
    """

    stage = Stage.LATE

    def __init__(
        self,
        saving: HoldsUp,
        device: torch.device,
    ) -> None:
        self.tell: Callable[[Sequence[Row], Sequence[float]], object] = lambda rows, busy: None
        """Called at the end of each phase, with the same values on every rank: the ranks' rows
        since the previous phase, and the seconds for which each was busy. For an instrument to set.
        """
        self._saving, self._pause_s = saving, 0.0
        self._seconds = [0.0] * len(PARTS)
        """The seconds of each part since the pass began."""
        self._transferred = [0.0] * len(PARTS)
        """The seconds that were transferred between parts, which the GPU's clock does not
        include."""
        self._device = DeviceClock(device, len(PARTS)) if device.type != "cpu" else None
        self._at_exchange = list(self._seconds)
        """The value of ``_seconds`` at the ranks' last exchange."""
        self.exposed_s = 0.0
        """The seconds for which this rank has waited for others in the forward and backward passes
        of the current phase."""
        self._rows: Sequence[Row] = ()
        self._busy_s = 0.0
        self._marks = [(IN_SCRIPT, perf_counter())]
        """The marks that are not counted yet. The last one is what the main thread is doing now.
        Changed in place."""
        self.mark: Mark = self._marks.append if self._device is None else self._mark_on_device
        """The function to call when an activity begins. In a step of a small model each Python call
        counts, so this is a method of a list."""
        self.num_steps = 0
        """The number of steps so far."""
        self.step_s = 0.0
        """The usual duration of a step: a mean that favors recent steps."""
        self._step_began_s = perf_counter()
        self._is_in_pass = False
        self._is_in_optimizer = False
        """Whether an optimizer of the run is stepping; its closure may run a phase."""

    @property
    def doing(self) -> str:
        """The current activity of the main thread, for the user. May be read by another thread."""
        activity = self._marks[-1][0]
        # The last step of a pass that was left by `break` ends after it.
        return _BETWEEN_PASSES if activity == LOADING and not self._is_in_pass else activity

    def take(self) -> dict[str, float]:
        """Returns the seconds of each part since the pass began, once the GPU has finished.
        Local."""
        self.charge(SCRIPT)
        if self._device is not None:
            self._device.read(wait=True)
        return self.so_far

    @property
    def so_far(self) -> dict[str, float]:
        """The seconds of each part up to the last event that the GPU has reached. May be read by
        another thread."""
        if self._device is None:
            # Of copies, since the main thread may add marks meanwhile, and counting removes them.
            seconds = list(self._seconds)
            _count(list(self._marks), seconds)
        else:
            pairs = zip(self._device.seconds, self._transferred, strict=True)
            seconds = [max(0.0, measured_s + transferred_s) for measured_s, transferred_s in pairs]
        return dict(zip(PARTS, seconds, strict=True))

    def charge(self, part: int, then: str | None = None) -> None:
        """Counts the time since the last mark as this part. ``then``: the activity that follows;
        None: the same."""
        _count(self._marks, self._seconds)
        # One mark is left, of the current activity.
        ((activity, began_s),) = self._marks
        now_s = perf_counter()
        self._marks[0] = (then or activity, now_s)
        self._seconds[part] += now_s - began_s
        if self._device is not None:
            self._device.charge(part)

    def _mark_on_device(self, mark: tuple[str, float]) -> None:
        assert self._device is not None
        self._device.charge(_PART_OF[self._marks[-1][0]])
        self._marks.append(mark)

    def _transfer(self, source: int, target: int, seconds: float) -> None:
        """Count these seconds of one part as another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds
        if self._device is not None:
            self._transferred[source] -= seconds
            self._transferred[target] += seconds

    # Methods of Listener

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._seconds, self._transferred = [0.0] * len(PARTS), [0.0] * len(PARTS)
        if self._device is not None:
            self._device.begin()
        self._pause_s = self._saving.pause_s
        self._step_began_s = perf_counter()
        self._marks[:] = [(LOADING, self._step_began_s)]
        self._begin_phase()
        self._is_in_pass = True

    @override
    def begin_step(self, step: int) -> None:
        self.mark((IN_SCRIPT, perf_counter()))
        pause_s = self._saving.pause_s
        if pause_s != self._pause_s:  # checkpoints are saved before a step
            self._transfer(DATA, CHECKPOINT, pause_s - self._pause_s)
            self._pause_s = pause_s
        if self._device is not None:
            self._device.read()

    @override
    def end_phase(self, phase: int) -> None:
        rows, then = self._rows, _IN_OPTIMIZER if self._is_in_optimizer else IN_SCRIPT
        now_s, (_, began_s) = perf_counter(), self._marks[-1]
        # A single process exchanges nothing, and only adds up its gradients.
        self._marks[-1] = (_EXCHANGING if rows else IN_BACKWARD, began_s)
        self.mark((then, now_s))
        if rows:
            busy = busy_of(rows)
            exchange_s = self.exposed_s + now_s - began_s
            # At most as long as the exchange took: the busy times are read from the clocks of
            # several ranks, and their difference need not fit this rank's to the microsecond.
            self._transfer(COMMUNICATION, WAITING, min(exchange_s, max(0.0, max(busy) - self._busy_s)))
            self.tell(rows, busy)
            self._begin_phase()

    def overlapped(self, in_backward_s: float, in_forward_s: float) -> None:
        """Notes how long this rank waited for others in the newest backward pass, and in the
        forward pass before it."""
        self._transfer(BACKWARD, COMMUNICATION, in_backward_s)
        self._transfer(FORWARD, COMMUNICATION, in_forward_s)
        self.exposed_s += in_backward_s + in_forward_s

    @override
    def before_optimizer(self, *_: Any) -> None:
        self.mark((_IN_OPTIMIZER, perf_counter()))
        self._is_in_optimizer = True

    def after_optimizer(self, *_: Any) -> None:
        """Call it after each step of any optimizer of this process, including optimizers that are
        not the run's."""
        if self._is_in_optimizer:
            self.mark((IN_SCRIPT, perf_counter()))
            self._is_in_optimizer = False

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        now_s = perf_counter()
        self.mark((IN_LOGGING, now_s))
        if len(self._marks) > _MANY:
            _count(self._marks, self._seconds)
        took_s, self._step_began_s = now_s - self._step_began_s, now_s
        # The mean of the first ten steps; after that, each new step has a tenth of the weight.
        self.step_s += (took_s - self.step_s) / min(self.num_steps + 1, _USUAL)
        self.num_steps += 1

    @override
    def abandon_step(self) -> None:
        self.charge(SCRIPT)
        self._begin_phase()

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._is_in_pass = False
        self.mark((_BETWEEN_PASSES, perf_counter()))

    # Exchanges between ranks: implements `Clock` of `_loop/exchange.py`

    def device_finished(self) -> None:
        """Counts the time so far as the backward pass."""
        self.charge(BACKWARD)

    def report(self, plan: StepPlan) -> list[float]:
        """Returns this rank's ``Row`` since the last exchange. Local. ``plan``: of the step."""
        self.charge(SCRIPT)
        now, before = self._seconds, self._at_exchange
        data = now[DATA] - before[DATA]
        forward = now[COPY] - before[COPY] + now[FORWARD] - before[FORWARD]
        backward = now[BACKWARD] - before[BACKWARD]
        script = now[OPTIMIZER] - before[OPTIMIZER] + now[SCRIPT] - before[SCRIPT]
        self._busy_s = data + forward + backward + script
        num_samples = float(sum(micro.num_samples for micro in plan.micro_batches))
        return [num_samples, data, forward, backward, script, self._busy_s]

    def receive(self, rows: Sequence[Row]) -> None:
        """Keep the rows of all ranks until the phase ends."""
        self._rows = rows

    def _begin_phase(self) -> None:
        _count(self._marks, self._seconds)
        self._at_exchange = list(self._seconds)
        self.exposed_s, self._rows = 0.0, ()


def _count(marks: list[tuple[str, float]], seconds: list[float]) -> None:
    """Add the intervals between marks to the parts' seconds. The last mark stays."""
    before, began_s = marks[0]
    for activity, now_s in marks:
        seconds[_PART_OF[before]] += now_s - began_s
        before, began_s = activity, now_s
    del marks[:-1]


class OverlapTimer(Listener):
    """A listener that charges as communication the time for which this rank waits for others within
    its forward and backward passes, if gradients are exchanged then."""

    stage = Stage.LATE

    def __init__(self, clock: StepClock, overlapping: Overlapping) -> None:
        self._clock = clock
        self._overlapping = overlapping

    @override
    def after_backward(self) -> None:
        if waited_s := self._overlapping.waited_s:
            self._clock.overlapped(waited_s, self._overlapping.waited_in_forward_s)


class LoaderTimer(Listener):
    """A listener that charges the time before the end of a pass, in which the loop waits for the
    loader. It must be the first listener."""

    stage = Stage.EARLY

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    @override
    def flush(self) -> None:
        self._clock.charge(DATA)


class LoggingTimer(Listener):
    """A listener that charges the time of the other listeners before the end of a pass, which log
    what is left. It must be the first of the last stage."""

    stage = Stage.LATE

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    @override
    def flush(self) -> None:
        self._clock.charge(LOGGING)
