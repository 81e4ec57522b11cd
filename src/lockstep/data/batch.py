"""What a prepared loader yields: one step's global batch, as far as it is this process's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from lockstep.data.batches import to_device
from lockstep.errors import UsageError
from lockstep.plan.shards import MicroStep, StepPlan

_LINES = "for images, labels in batch.shards: ..."


class PhaseDriver(Protocol):
    """What a batch tells of its phases, and asks."""

    @property
    def micro(self) -> MicroStep | None:
        """The micro-step that runs; None: outside of ``batch.shards``."""

    def open(self, shards: Shards) -> None:
        """A loop over the shards of a batch may begin; or, where this process has none, be over before it does."""

    def begin_phase(self, batch: Batch) -> Batch:
        """The shards of a batch are about to be run. Returns the batch that leads the phase: another one where a loop runs
        over the shards of two batches side by side."""

    def begin_shard(self, micro: MicroStep) -> None:
        """A micro-step is about to run."""

    def received(self, micro: MicroStep, data: Any) -> None:
        """The samples of the micro-step that has begun, before the script gets them."""

    def end_shard(self) -> None:
        """It has run."""

    def end_phase(self) -> None:
        """All of this process's shards have run: meet those of the other ranks."""

    def add(self, weight: float | None, values: dict[str, Any]) -> None:
        """Note values of the shard that runs."""

    def check_outside(self, what: str) -> None:
        """Refuse what does not belong into ``batch.shards``."""


class Batch:
    """One step's global batch, of which this process has some shards (none, if the batch is small).

    ::

        for batch in loader:
            for images, labels in batch.shards:
                loss = criterion(model(images), labels)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])

    Args:
        plan: what this process has to do in it.
        data: the samples of each micro-step, before they are moved to the device.
        driver: told of its phases.
        device: where the script gets the samples; None: where they are.
    """

    def __init__(self, plan: StepPlan, data: list[Any], driver: PhaseDriver, device: torch.device | None) -> None:
        self.plan = plan
        self.values: dict[str, float] = {}
        """What ``batch[name]`` gives."""
        self.totals: dict[str, tuple[float, float]] = {}
        """The weighted sums that they are made of, and the weights, of the phases that this batch has led."""
        self._data = data
        self._driver = driver
        self._device = device

    @property
    def num_samples(self) -> int:
        """Samples of the step's global batch (of all its parts, with ``accumulate``). The same on every rank."""
        return self.plan.num_samples

    @property
    def shards(self) -> Iterator[Any]:
        """This process's shards, one after another, each on ``team.device``; empty on a rank without samples.

        Each loop over them is a phase, with a random stream and a gradient of its own; at its end the gradients of all
        ranks meet, so every rank must come to that end. Leaving it before is an error.
        """
        shards = Shards(self, self._data, self._driver, self._device)
        self._driver.open(shards)
        return shards

    def add(self, *, weight: float | None = None, **values: Any) -> None:
        """Note what the shard at hand gave, for the mean over the global batch: ``batch[name]`` when the phase is over.

        Args:
            weight: the shard's weight in the mean; None: that of its ``team.backward``, else its number of samples.
            values: each a number or a tensor: the shard's mean, or one value a sample (then they are averaged).
        """
        self._driver.add(weight, values)

    def note(self, sums: Mapping[str, tuple[float, float]]) -> None:
        """A phase that this batch has led is over: the weighted sum of each value over the global batch, and the weights'."""
        for name, (total, weight) in sums.items():
            self.totals[name] = (total, weight)
            self.values[name] = total / weight if weight else float("nan")

    def __getitem__(self, name: str) -> float:
        """The mean of a value over the global batch, by weight: the same on every rank, to the bit."""
        if not isinstance(name, str):
            self.refuse(f"batch[{name!r}]")
        self._driver.check_outside(f"batch[{name!r}]")
        if name not in self.values:
            there = ", ".join(self.values) or "nothing"
            raise UsageError(
                f"batch[{name!r}]: no value of that name was added in this step with batch.add({name}=...) inside "
                f"batch.shards (there is: {there}). If it is part of the data, read it inside: `{_LINES}`"
            )
        return self.values[name]

    def __iter__(self) -> NoReturn:
        self.refuse("the batch was unpacked, or iterated")

    def __len__(self) -> NoReturn:
        self.refuse("len(batch)")

    def __bool__(self) -> bool:
        return True

    if not TYPE_CHECKING:  # for type checkers there are no such attributes either

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            self.refuse(f"batch.{name}")

    def refuse(self, what: str) -> NoReturn:
        """Say that this is no sample.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{what}: a prepared loader yields one global batch a step, which is no sample or tensor itself, since each "
            f"process has only its shards of it. Run over these: `{_LINES}`"
        )

    def __repr__(self) -> str:
        return f"Batch(step {self.plan.number}: {self.num_samples} samples, {len(self._data)} of the shards here)"


class Shards:
    """One loop over the shards of a batch. (An object and not a generator: leaving it early must not close anything.)"""

    def __init__(self, batch: Batch, data: list[Any], driver: PhaseDriver, device: torch.device | None) -> None:
        self.batch = batch
        self._data = data
        self._driver = driver
        self._device = device
        self._index = -1
        self._leader: Batch | None = None
        self._is_over = False

    def __iter__(self) -> Shards:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        driver, batch = self._driver, self.batch
        if self._leader is None:
            self._leader = driver.begin_phase(batch)
        leads = self._leader is batch
        if leads and self._index >= 0:
            driver.end_shard()
        self._index += 1
        if self._index == len(self._data):
            self._is_over = True
            if leads:
                driver.end_phase()
            raise StopIteration
        micro = batch.plan.micro_steps[self._index]
        data = self._data[self._index]
        if self._device is not None:
            data = to_device(data, self._device)
        if leads:
            driver.begin_shard(micro)
        elif driver.micro is None or (driver.micro.shard, driver.micro.part) != (micro.shard, micro.part):
            raise UsageError(
                f"the shards of two batches must be run side by side, as zip(a.shards, b.shards) does: the second batch is at "
                f"{_name(micro)}, and the first at {_name(driver.micro)}."
            )
        driver.received(micro, data)
        return data

    def go_along(self) -> bool:
        """A phase that another batch has led is over: whether it was this one's too. (Where this process has no shards, the
        loop over both was over before it came here.)"""
        if self._leader is None and not self._data:
            self._is_over = True
        return self._is_over or (self._leader is not None and self._leader is not self.batch)


def _name(micro: MicroStep | None) -> str:
    return "none" if micro is None else f"shard {micro.shard}, part {micro.part}"
