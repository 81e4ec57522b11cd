"""Steps from one loader under changing settings, and how long they take."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Generator, Iterable, Iterator
from time import perf_counter, process_time
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from lockstep.data.assignment import ShardAssignment
from lockstep.data.batches import map_tensors
from lockstep.data.fetch import set_loading
from lockstep.data.sources import Deal, choose_source
from lockstep.plan.loading import Loading
from lockstep.tools.tune.session import Session

T = TypeVar("T")
Steps = Generator[Deal, None, T]
"""Yields steps for the script to take, and returns what was measured during them."""
_LEAST_STEPS, _MOST_STEPS = 3, 2000
_SETTLING_S = 1.0
"""Maximum time for workers to fill their queues before steps are timed."""


class Window(NamedTuple):
    """Times of some steps under the same settings, in seconds a step, on the slowest process."""

    step_s: float
    """Includes the start of the workers, spread over the steps of a pass."""
    wait_s: float
    """Waiting for the loader."""
    cpu_s: float
    """CPU time of the training process."""


class NoStepsError(Exception):
    """A pass over the loader has no steps."""


class Endless:
    """The steps of a loader under some settings, pass after pass.

    Args:
        make: begins a pass.
    """

    def __init__(self, make: Callable[[], Iterator[Deal]]) -> None:
        self._make = make
        self._deals = make()
        self.restarts_s = 0.0
        """Time spent waiting for the first step of every further pass."""

    def next(self) -> Deal:
        """The next step.

        Raises:
            NoStepsError: there is none.
        """
        if (deal := next(self._deals, None)) is None:
            began_s = perf_counter()
            self._deals = self._make()
            deal = next(self._deals, None)
            self.restarts_s += perf_counter() - began_s
        if deal is None:
            raise NoStepsError
        return deal

    def close(self) -> None:
        """End its workers."""
        self._deals.close()  # type: ignore[attr-defined]


class Windows:
    """Times the steps of a loader.

    Args:
        batches: the script's DataLoader, whose settings it changes.
        assignment: of this process.
        session: of this process.
    """

    def __init__(self, batches: Iterable[Any], assignment: ShardAssignment, session: Session) -> None:
        self._batches = batches
        self._assignment = assignment
        self._session = session
        self._epoch = 0
        self._next_step = 1
        self._compares = False

    def begin_pass(self, first_step: int, epoch: int, *, compared: bool) -> None:
        """The script begins a pass over the loader."""
        self._next_step, self._epoch, self._compares = first_step, epoch, compared

    def open(self, loading: Loading) -> Endless:
        """The steps of the loader under some settings, with workers of their own."""
        set_loading(self._batches, loading)
        source = choose_source(self._batches, self._assignment)

        def make() -> Iterator[Deal]:
            compared, self._compares = self._compares, False
            return source.deal(1, self._epoch, compared=compared)

        return Endless(make)

    def numbered(self, deal: Deal) -> Deal:
        """The same deal, numbered as the next step of the run."""
        plan, data = deal
        number, self._next_step = self._next_step, self._next_step + 1
        micro_steps = [dataclasses.replace(micro, step=number) for micro in plan.micro_steps]
        return dataclasses.replace(plan, number=number, micro_steps=micro_steps), data

    def count(self, step_s: float, share: float = 1.0) -> int:
        """How many steps of this duration to time, in this share of a window. The arguments must be the same on every rank."""
        return max(_LEAST_STEPS, min(_MOST_STEPS, round(share * self._session.window_s / max(step_s, 1e-6))))

    def warm_up(self, loading: Loading, steps: int, seconds: float) -> Steps[float]:
        """Take the first steps of the run, in which libraries choose their kernels. Returns the duration of the last one."""
        endless, began_s = self.open(loading), 0.0
        for _ in range(steps):
            began_s = perf_counter()
            yield self.numbered(endless.next())
        last_s = self._session.slowest(perf_counter() - began_s)
        for _ in range(min(10 * steps, int(seconds / last_s))):
            yield self.numbered(endless.next())
        endless.close()
        return last_s

    def time(self, loading: Loading, expected_s: float, num_steps: int | None, share: float = 1.0) -> Steps[Window]:
        """Time steps under some settings, once the workers have filled their queues.

        Args:
            loading: the settings.
            expected_s: the approximate time of a step. The same on every rank.
            num_steps: in a pass, if workers are started for every pass; None: they are started once.
            share: of the usual time, for steps that need not be known well. The same on every rank.
        """
        began_s = perf_counter()
        endless = self.open(loading)
        first = endless.next()
        first_s = perf_counter() - began_s
        yield self.numbered(first)
        workers = loading.workers or 0
        ahead = workers * (loading.prefetch or 0)
        settling = min(ahead, max(workers, int(_SETTLING_S / expected_s)))
        halfway_s = perf_counter()
        for number in range(settling):
            if number == settling // 2:
                halfway_s = perf_counter()
            yield self.numbered(endless.next())
        if settling >= _LEAST_STEPS:
            expected_s = self._session.slowest((perf_counter() - halfway_s) / (settling - settling // 2))
        count = self.count(expected_s, share)
        step_s, wait_s, cpu_s = yield from self.measure(endless.next, count, lambda: endless.restarts_s)
        began_s = perf_counter()
        endless.close()
        if workers and num_steps:
            step_s += max(0.0, first_s - wait_s + perf_counter() - began_s) / num_steps
        return Window(*(self._session.slowest(seconds) for seconds in (step_s, wait_s, cpu_s)))

    def measure(
        self, get: Callable[[], Deal], count: int, lost_s: Callable[[], float] = lambda: 0.0
    ) -> Steps[tuple[float, float, float]]:
        """Time ``count`` steps: seconds a step, the part spent in ``get``, and CPU time. Time in ``lost_s`` does not count."""
        self._session.settle()
        lost_before_s, wait_s = lost_s(), 0.0
        began_s, began_cpu_s = perf_counter(), process_time()
        for _ in range(count):
            asked_s = perf_counter()
            deal = get()
            wait_s += perf_counter() - asked_s
            yield self.numbered(deal)
        self._session.settle()
        took_s, cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
        lost = lost_s() - lost_before_s
        return (took_s - lost) / count, (wait_s - lost) / count, cpu_s / count

    def fetch(self, loading: Loading, least: int, most: int) -> Fetched:
        """Fetch batches one after another, without steps. Local."""
        began_s = perf_counter()
        endless = self.open(loading)
        endless.next()  # the first may open files, or import modules
        first_s = perf_counter() - began_s
        times_s: list[float] = []
        deals: list[Deal] = []
        began_s, began_cpu_s = perf_counter(), process_time()
        while len(times_s) < least or (len(times_s) < most and perf_counter() - began_s < self._session.window_s):
            asked_s = perf_counter()
            deals = [*deals, endless.next()][-least:]
            times_s.append(perf_counter() - asked_s)
        took_s, cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
        ending_s = perf_counter()
        endless.close()
        return Fetched(
            each_s=took_s / len(times_s),
            cpu_s=cpu_s / len(times_s),
            longest_s=sorted(times_s)[-2],  # the longest may have been held up by something else
            spread=statistics.pstdev(times_s) / max(statistics.mean(times_s), 1e-9),
            start_s=max(0.0, first_s - took_s / len(times_s)) + perf_counter() - ending_s,
            deals=deals,
        )


class Fetched(NamedTuple):
    """Batches that were fetched one after another."""

    each_s: float
    cpu_s: float
    """CPU time of the training process for each."""
    longest_s: float
    spread: float
    """Standard deviation divided by mean."""
    start_s: float
    """Time to begin and end a pass, in addition to that of its batches."""
    deals: list[Deal]
    """The latest of them."""

    @property
    def batch_bytes(self) -> int:
        """Size of the tensors of the largest batch."""
        sizes = []
        for _, data in self.deals:
            sizes.append(0)
            map_tensors(lambda tensor: _add(sizes, tensor), data)
        return max(sizes)


def _add(sizes: list[int], tensor: Tensor) -> Tensor:
    sizes[-1] += tensor.nbytes
    return tensor
