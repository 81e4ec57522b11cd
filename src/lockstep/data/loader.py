"""The prepared training loader: iterating it *is* the training loop's clock."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from lockstep.data.batches import to_device
from lockstep.data.sources import Absence, Share, choose_source
from lockstep.errors import DataError, UsageError
from lockstep.plan.shards import MicroStep


class Driver(Protocol):
    """What a loader tells of its progress, and asks."""

    @property
    def next_step(self) -> int:
        """Number of the step that would begin now."""

    @property
    def turn(self) -> MicroStep | None:
        """The micro-step whose body is running."""

    def skips(self) -> bool:
        """Whether the pass that is about to begin was made before the run was interrupted, and is left out."""

    def enter(self, loader: object) -> bool:
        """A pass over ``loader`` begins. True if it leads the steps; False if it goes along with another that does."""

    def begin(self, turn: MicroStep) -> None:
        """The body of a micro-step is about to run."""

    def received(self, turn: MicroStep, batch: Any) -> None:
        """The samples of the micro-step that has begun, before the script gets them; from each loader of the loop."""

    def end_turn(self) -> None:
        """The body has run. After the last micro-step of a step, the step ends."""

    def follow(self, absence: Absence) -> bool:
        """Take part in a step without a body. False if the others have left the loop in it."""

    def resume_stream(self) -> None:
        """Start the random stream of the current micro-step (again: fetching for a second loader disturbed it)."""

    def leave(self, loader: object, *, exhausted: bool, failed: bool) -> None:
        """The pass is over: to its end, or left by ``break`` or an error."""


class PreparedLoader:
    """What ``team.prepare`` makes of a DataLoader: one iteration is one micro-step, on this process's samples.

    ``len()`` counts global steps. Other attributes are those of the user's loader.
    """

    def __init__(self, batches: Iterable[Any], share: Share, driver: Driver, device: torch.device) -> None:
        self.wrapped = batches
        """The loader as the user made it."""
        self._source = choose_source(batches, share)
        self._driver = driver
        self._device = device
        self._epoch = 0
        """Number of the next pass."""
        self._pass: object = None
        self._is_running = False
        """Whether a pass is under way."""
        self._first_step = 1
        """Of the newest pass."""
        self._skip = 0
        """Steps of the next pass that were taken before the run was interrupted."""

    def __len__(self) -> int:
        return self._source.num_steps()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def describe(self) -> list[str]:
        """What must be the same on every rank, a line each."""
        return self._source.describe()

    def __iter__(self) -> Iterator[Any]:
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
        this_pass = self._pass = object()
        try:
            for turn, batch in self._deal(driver.next_step):
                if isinstance(turn, Absence):
                    if not driver.follow(turn):
                        return
                    continue
                batch = to_device(batch, self._device)
                driver.begin(turn)
                driver.received(turn, batch)
                yield batch
                if this_pass is not self._pass:
                    raise UsageError(
                        "an iterator of a prepared loader was used after a newer one of the same loader: there is one "
                        "position in the run, and the newer one has moved it"
                    )
                driver.end_turn()
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

    def _go_along(self) -> Iterator[Any]:
        """A second loader in the same loop (``zip(a, b)``): it must have a batch for each micro-step of the first."""
        driver = self._driver
        this_pass = self._pass = object()
        try:
            for turn, batch in self._deal(driver.next_step - 1):
                current = driver.turn
                if current is None or _place(turn) != _place(current):
                    raise DataError(
                        "two prepared loaders in one loop must go step by step together, as zip(a, b) does, with a batch "
                        f"for every shard: the second one has {turn}, and the loop is at {current}. Loops over prepared "
                        "loaders cannot be nested."
                    )
                batch = to_device(batch, self._device)
                driver.resume_stream()
                assert isinstance(turn, MicroStep)
                driver.received(turn, batch)
                yield batch
        finally:
            if this_pass is self._pass:
                self._is_running = False

    def _deal(self, next_step: int) -> Iterator[Any]:
        """The next pass, or the rest of the one that was interrupted."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        skip, self._skip = self._skip, 0
        self._first_step = next_step - skip
        self._is_running = True
        return self._source.deal(self._first_step, epoch, skip)

    @property
    def num_skipped(self) -> int:
        """Steps of the next pass that were taken before the run was interrupted."""
        return self._skip

    def state(self, step: int) -> dict[str, Any]:
        """Where it is after a step of the run: a tree of plain values and tensors, the same on every rank."""
        running = self._is_running
        return {
            "pass": self._epoch - running,
            "skip": step - self._first_step + 1 if running else 0,
            "source": self._source.state(step if running else None),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there with the next pass."""
        self._epoch, self._skip = state["pass"], state["skip"]
        self._source.load_state(state["source"])


def _place(turn: MicroStep | Absence) -> tuple[int, int, int] | None:
    return (turn.step, turn.shard, turn.part) if isinstance(turn, MicroStep) else None
