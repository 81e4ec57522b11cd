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
        self._pass: object = None

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
        if not self._driver.enter(self):
            yield from self._go_along()
            return
        driver, exhausted, failed = self._driver, False, False
        epoch, self._epoch = self._epoch, self._epoch + 1
        this_pass = self._pass = object()
        try:
            for turn, batch in self._source.deal(driver.next_step, epoch):
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
                driver.leave(self, exhausted=exhausted, failed=failed)

    def _go_along(self) -> Iterator[Any]:
        """A second loader in the same loop (``zip(a, b)``): it must have a batch for each micro-step of the first."""
        driver = self._driver
        epoch, self._epoch = self._epoch, self._epoch + 1
        for turn, batch in self._source.deal(driver.next_step - 1, epoch):
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


def _place(turn: MicroStep | Absence) -> tuple[int, int, int] | None:
    return (turn.step, turn.shard, turn.part) if isinstance(turn, MicroStep) else None
