"""The prepared training loader: one iteration is one step, on every process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, Protocol

import torch

from lockstep.data.assignment import ShardAssignment
from lockstep.data.batch import Batch, PhaseDriver
from lockstep.data.sources import Deal, choose_source
from lockstep.errors import UsageError
from lockstep.plan.shards import StepPlan


class Driver(Protocol):
    """What a loader tells of its progress, and asks."""

    @property
    def phases(self) -> PhaseDriver:
        """Told of the phases of each step."""

    @property
    def next_step(self) -> int:
        """Number of the step that would begin now."""

    def skips(self) -> bool:
        """Whether the pass that is about to begin was made before the run was interrupted, and is left out."""

    def enter(self, loader: object) -> bool:
        """A pass over ``loader`` begins. True if it leads the steps; False if it goes along with another that does."""

    def compare_data(self, found: str) -> None:
        """See that all ranks have found the same at the beginning of their data. Every rank must call it."""

    def begin_step(self, plan: StepPlan) -> None:
        """The next global batch is there: a step begins."""

    def goes_along(self, loader: Any) -> None:
        """A loader gives a batch beside the one that leads: start the random stream again, which its fetching has disturbed."""

    def went(self, loader: Any) -> None:
        """Its pass is over."""

    def end_step(self) -> None:
        """The loop's body has run."""

    def leave(self, loader: object, *, exhausted: bool, failed: bool) -> None:
        """The pass is over: to its end, or left by ``break`` or an error."""


class PreparedLoader:
    """What ``team.prepare`` makes of a DataLoader: it yields a ``Batch`` a step, the same number of them on every rank.

    ``len()`` counts steps. Other attributes are those of the user's loader.
    """

    def __init__(self, batches: Iterable[Any], assignment: ShardAssignment, driver: Driver, device: torch.device) -> None:
        self.wrapped = batches
        """The loader as the user made it."""
        self._source = choose_source(batches, assignment)
        self._driver = driver
        self._device = None if device.type == "cpu" else device
        self._epoch = 0
        """Number of the next pass."""
        self._is_compared = assignment.world_size == 1
        """Whether this rank reads what the others do."""
        self._pass: object = None
        self._is_running = False
        """Whether a pass is under way."""
        self._first = 1
        """The number of the newest pass's first step, as this loader counts them."""
        self._done = 0
        """Steps of the newest pass that are over."""
        self._newest: Batch | None = None
        """The newest batch that was handed out beside another loader's."""
        self._followed = 0
        """Batches that were handed out beside another loader's, ever."""
        self._skip = 0
        """Steps of the next pass that were taken before the run was interrupted."""
        self._totals: dict[str, list[float]] = {}
        """For each value of ``batch.add``, its weighted sum over the newest pass, and the weights'."""

    def __len__(self) -> int:
        return self._source.num_steps()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    @property
    def averages(self) -> dict[str, float]:
        """The means of what ``batch.add`` was given, over all steps of the newest pass. The same on every rank."""
        return {name: total / weight if weight else float("nan") for name, (total, weight) in self._totals.items()}

    def _sums(self) -> dict[str, list[float]]:
        """With what the newest batch beside another loader's has brought: it counts as done."""
        sums = {name: list(pair) for name, pair in self._totals.items()}
        for name, pair in (self._newest.totals if self._newest is not None else {}).items():
            sums[name] = [one + other for one, other in zip(sums.get(name, [0.0, 0.0]), pair, strict=True)]
        return sums

    def _add(self, batch: Batch) -> None:
        """What a batch's phases have brought, once."""
        totals, batch.totals = batch.totals, {}
        for name, (total, weight) in totals.items():
            own = self._totals.setdefault(name, [0.0, 0.0])
            own[0] += total
            own[1] += weight

    def _refuse_older(self) -> NoReturn:
        raise UsageError(
            "an iterator of a prepared loader was used after a newer one of the same loader: there is one position in the "
            "run, and the newer one has moved it"
        )

    def describe(self) -> list[str]:
        """What must be the same on every rank, a line each."""
        return self._source.describe()

    def __iter__(self) -> Iterator[Batch]:
        if not torch.is_grad_enabled():
            raise UsageError(
                "a prepared loader was iterated without gradients, so this is no training loop: "
                "use `with team.evaluate(model, loader) as batches:` to evaluate on all processes"
            )
        if self._driver.skips():
            return
        if not self._driver.enter(self):
            yield from self._go_along()
            return
        driver, exhausted, failed = self._driver, False, False
        batch: Batch | None = None
        this_pass = self._pass = object()
        try:
            for plan, data in self._deal(driver.next_step):
                driver.begin_step(plan)
                batch = Batch(plan, data, driver.phases, self._device)
                yield batch
                if this_pass is not self._pass:
                    self._refuse_older()
                self._done += 1
                driver.end_step()
                if batch.totals:
                    self._add(batch)
            exhausted = True
        except GeneratorExit:
            # `break` closes this generator, and so does an error that leaves the loop: they cannot be told apart here.
            failed = sys.is_finalizing()
            raise
        except BaseException:
            failed = True
            raise
        finally:
            if this_pass is self._pass:  # else a newer iterator leads, and has closed this pass
                self._is_running = False
                driver.leave(self, exhausted=exhausted, failed=failed)
                if batch is not None and not failed:  # `break`: its phases that are over count
                    self._add(batch)

    def _go_along(self) -> Iterator[Batch]:
        """Within a loop over another loader (``zip(a, b)``, or a loop in its body): that one counts the steps."""
        driver = self._driver
        batch: Batch | None = None
        this_pass = self._pass = object()
        try:
            for plan, data in self._deal(self._followed + 1):
                self._done += 1
                self._followed += 1
                driver.goes_along(self)
                self._newest = batch = Batch(plan, data, driver.phases, self._device)
                yield batch
                if this_pass is not self._pass:
                    self._refuse_older()
                self._add(batch)
        finally:
            if this_pass is self._pass:
                driver.went(self)
                self._is_running = False
                if batch is not None:
                    self._add(batch)

    def abandon(self) -> None:
        """The pass beside another loader's has given no batch in a whole pass of that one: it is not waited for any more."""
        self._pass, self._is_running = None, False

    def _deal(self, next_number: int) -> Iterator[Deal]:
        """The next pass, or the rest of the one that was interrupted."""
        self._newest = None
        epoch, self._epoch = self._epoch, self._epoch + 1
        skip, self._skip = self._skip, 0
        if not skip:
            self._totals = {}
        self._first, self._done = next_number - skip, skip
        self._is_running = True
        if self._is_compared:
            return self._source.deal(self._first, epoch, skip)
        return self._compare(self._source.deal(self._first, epoch, skip, compared=True))

    def _compare(self, deals: Iterator[Deal]) -> Iterator[Deal]:
        """The same, once all ranks have read the same first samples: before anybody waits for gradients of what others lack."""
        first = next(deals, None)
        what = "nothing" if first is None else f"{first[0].num_samples} samples with the digest {first[0].digest[:8]}"
        name = type(getattr(self.wrapped, "dataset", self.wrapped)).__name__
        self._driver.compare_data(f"{what} in the first global batch of {name}")
        self._is_compared = True
        if first is not None:
            yield first
            yield from deals

    @property
    def num_skipped(self) -> int:
        """Steps of the next pass that were taken before the run was interrupted."""
        return self._skip

    def state(self) -> dict[str, Any]:
        """Where it is after the last step: a tree of plain values and tensors, the same on every rank."""
        running = self._is_running
        return {
            "pass": self._epoch - running,
            "skip": self._done if running else 0,
            "followed": self._followed,
            "totals": self._sums(),
            "source": self._source.state(self._first + self._done - 1 if running else None),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there with the next pass."""
        self._epoch, self._skip, self._followed = state["pass"], state["skip"], state["followed"]
        self._totals = {name: list(pair) for name, pair in state["totals"].items()}
        self._source.load_state(state["source"])
