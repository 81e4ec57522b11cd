"""``Batch``: the item of a prepared loader, with this process's shards of one step's global batch.

::

    sampler          indices of one global batch, the same on every rank
       | plan_step   rows per shard, shards per rank
       | fetch       each shard alone, in its own random stream (in a worker, ahead of the loop)
    Batch(plan, data)                                    per rank: one item per micro-batch
       | batch.shards  begin_phase, begin_shard -> samples on the device -> end_shard ... end_phase
    loop body        forward and team.backward for one shard

The loop over ``batch.shards`` drives the phase: the script needs no call to begin or end one.

Two batches of two loaders may share a phase, as in ``zip(a.shards, b.shards)``. The first *leads*:
its micro-batches begin and end, and its ``values`` get the results. The second *follows*: its loop
only yields samples of the same shards.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from torch import Tensor
from typing_extensions import override

from lockstep._base.errors import UsageError
from lockstep._data.shared import Shared, keep
from lockstep._data.uploads import Upload, Uploads
from lockstep._data.values import MEAN, Total
from lockstep._plan.shards import MicroBatch, StepPlan

MicroBatchSamples = tuple[MicroBatch, Any]
"""A micro-batch and its samples."""
_LINES = "for images, labels in batch.shards: ..."


def own_micro_batches(plan: StepPlan, data: Sequence[Any], leads: bool) -> Iterator[MicroBatchSamples]:
    """Yields the micro-batches of a batch with their samples, as ``PhaseDriver.micro_batches`` of a
    run in which no instrument repeats shards."""
    return zip(plan.micro_batches, data, strict=True)


class RunningPhase(Protocol):
    """A phase, of which the loop over the leading batch runs the micro-batches."""

    micro: MicroBatch | None
    """The running micro-batch; None: between two."""

    def begin_shard(self, micro: MicroBatch, data: Any) -> None:
        """Begins a micro-batch, of which the script is about to receive the samples. ``data``: the
        samples before they are moved to the device."""

    def received(self, micro: MicroBatch, data: Any) -> None:
        """Notes that the script is about to receive samples of the current micro-batch from a batch
        that follows."""

    def end_shard(self) -> None:
        """Ends the micro-batch."""


class PhaseDriver(Protocol):
    """The part of the loop that runs the phases of a batch."""

    micro_batches: Callable[[StepPlan, Sequence[Any], bool], Iterator[MicroBatchSamples]]
    """The function that yields the micro-batches to run of a batch, with their samples. Its
    arguments are the batch's plan, its samples, and whether it leads the phase. Each micro-batch is
    requested after the end of the one before."""
    phase: RunningPhase | None
    """The running phase; None: outside of ``batch.shards``."""
    step: int
    """The number of the current step; between steps, of the last one."""

    @property
    def micro(self) -> MicroBatch | None:
        """The running micro-batch; None: outside of ``batch.shards``."""

    def open(self, batch: Batch, upload: Upload | None) -> Shards:
        """Returns a loop over the shards of a batch, which may begin a phase. ``upload``: moves its
        samples to the device; None: they stay where they are."""

    def begin_phase(self, batch: Batch) -> Batch:
        """Begins a phase on a batch's shards. Returns the batch that leads the phase: this one, or
        another that this one follows."""

    def end_phase(self) -> None:
        """Ends the phase: combines this process's shards with the shards of the other ranks.
        Collective."""

    def add(self, weight: float | Tensor | None, values: dict[str, Any], reduction: str | None = None) -> None:
        """Records values of the running shard."""

    @property
    def is_dry_run(self) -> bool:
        """Whether the running shard is a dry run, without effect on the run (``loop.dry_runs``)."""

    def gather(self, mine: list[Shared]) -> list[Shared]:
        """Returns what the shards of all ranks have shared, in shard order. Every rank must call
        it."""

    def check_outside(self, call: str) -> None:
        """Raises UsageError, with the name ``call``, inside ``batch.shards``."""


class GlobalBatch:
    """A batch of all processes. The script gets samples only by a loop over its ``shards``."""

    # No ABC: every forward pass asks whether its input is one, and an ABC answers that in Python.

    __slots__ = ()

    def refuse(self, use: str) -> NoReturn:
        """Raises the error for using the batch as if it were the samples.

        Raises:
            UsageError: always.
        """
        raise NotImplementedError

    def __iter__(self) -> NoReturn:
        self.refuse("the batch was unpacked, or iterated")

    def __len__(self) -> NoReturn:
        self.refuse("len(batch)")

    def __bool__(self) -> bool:
        return True

    if not TYPE_CHECKING:  # so that type checkers report unknown attributes too

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            self.refuse(f"batch.{name}")


class Batch(GlobalBatch):
    """The batch of one step over all processes, of which this process has some shards (none, if the
    batch is small).

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
        plan: this process's share of the step.
        data: the samples of each micro-batch, before they are moved to the device.
        driver: runs the phases.
        uploads: moves samples to the device; None: they stay where they are.
    """

    def __init__(self, plan: StepPlan, data: list[Any], driver: PhaseDriver, uploads: Uploads | None) -> None:
        self.plan = plan
        self.was_passed_over = False
        """Whether its step ended without a phase."""
        self.values: dict[str, Any] = {}
        """The results of ``batch[name]``."""
        self.totals: dict[str, tuple[float, float]] = {}
        """For each of ``values`` that is a mean of numbers, its weighted sum and the sum of its
        weights, from the phases that this batch has led."""
        self.data = data
        self._driver = driver
        self._upload = None if uploads is None else uploads.of(data)
        self._shared: list[Shared] = []
        """The values that this process's shards have shared since the last ``shared()``."""

    @property
    def num_samples(self) -> int:
        """The number of samples of the step, over all processes and, with ``accumulate``, all its
        parts. The same on every rank."""
        return self.plan.num_samples

    @property
    def shards(self) -> Iterator[Any]:
        """This process's shards, one after another, each on ``team.device``; none on a rank without
        samples. With ``accumulate``, each shard comes once for each of the step's global batches.

        Each loop over them is a phase, with a separate gradient and separate random streams. The
        end of the loop synchronizes gradients over all ranks, so every rank must reach it. Leaving
        the loop early is an error."""
        return self._driver.open(self, self._upload)

    def add(self, *, weight: float | Tensor | None = None, reduction: str | None = None, **values: Any) -> None:
        """Records values of the current shard. After the phase, ``batch[name]`` is their mean or
        sum over the step. Local.

        ::

            batch.add(loss=loss, accuracy=logits.argmax(1) == labels)
            batch.add(counts=labels.bincount(minlength=10), reduction="sum")

        Args:
            weight: the shard's weight in a mean: a number, or a scalar tensor, which is read at the
                end of the phase. None: the weight passed to ``team.backward``, or the number of
                samples.
            reduction: the kind of values. ``mean``: means over the shard's samples, averaged by
                weight. ``sum``: sums over the samples, which are added. A tensor of any shape, the
                same in all shards, is then combined elementwise. None: ``mean``, of numbers only:
                each value is a number, or a tensor of shape ``(num_samples,)`` or ``(num_samples,
                1)`` with one value per sample, which is averaged first.
            values: numbers or tensors.

        Raises:
            ConfigError: a tensor is not one value per sample, and there is no ``reduction``.
        """
        self._driver.add(weight, values, reduction)

    def share(self, value: Any) -> None:
        """Shares a value of the running shard with all processes, inside ``batch.shards``:
        ``shared()`` returns it. Local.

        For code that needs each shard's values, not their mean. For example, a metric object that
        sees the global batch::

            for images, labels in batch.shards:
                logits = model(images)
                batch.share((logits, labels))
                team.backward(criterion(logits, labels))
            for logits, labels in batch.shared():
                accuracy.update(logits, labels)

        Args:
            value: tensors and plain values, or lists, tuples and dicts of them (or anything that
                can be pickled). Tensors are detached and copied.

        Raises:
            UsageError: outside of ``batch.shards``.
        """
        micro = self._driver.micro
        if micro is None:
            raise UsageError(
                "batch.share() outside of batch.shards: it shares a value of one shard. Call it in the loop over batch.shards, "
                "and batch.shared() after that loop.",
                code="share-outside",
            )
        if not self._driver.is_dry_run:
            self._shared.append(((micro.part, micro.shard), keep(value)))

    def shared(self) -> list[Any]:
        """Returns the values that the shards of all processes have shared since the last call, in
        the order of their samples: the same on every rank. Every rank must call it, after the loop
        over ``batch.shards``; it blocks until all have.

        Raises:
            UsageError: inside ``batch.shards``.
        """
        self._driver.check_outside("batch.shared()")
        mine, self._shared = self._shared, []
        return [value for _, value in self._driver.gather(mine)]

    def note(self, totals: Mapping[str, Total]) -> None:
        """Takes the results of a phase that this batch has led."""
        for name, total in totals.items():
            self.values[name] = total.result
            if total.kind == MEAN and isinstance(total.total, float):
                self.totals[name] = (total.total, total.weight)

    def __getitem__(self, name: str) -> Any:
        """Returns a value's mean or sum over the step: bit-identical on every rank. If two phases
        of the step have added the name, the later phase counts.

        Returns:
            Of numbers, and of one value per sample: a float, or the int that is a sum of integers.
            Of other tensors: a tensor on the CPU, of dtype int64 for a sum of integers, otherwise
            float64.
        """
        if not isinstance(name, str):
            self.refuse(f"batch[{name!r}]")
        self._driver.check_outside(f"batch[{name!r}]")
        if name not in self.values:
            available = ", ".join(self.values) or "nothing"
            raise UsageError(
                f"batch[{name!r}]: no value of that name was added in this step with batch.add({name}=...) inside "
                f"batch.shards (available: {available}). If it is part of the data, read it inside: `{_LINES}`",
                code="value-not-added",
            )
        return self.values[name]

    @override
    def refuse(self, use: str) -> NoReturn:
        raise UsageError(
            f"{use}: a prepared loader yields one global batch a step, as a batch object, not as tensors. Loop over the shards "
            f"of this process: `{_LINES}`",
            code="batch-used-as-tensors",
        )

    def __repr__(self) -> str:
        num_shards = sum(micro.begins_shard for micro in self.plan.micro_batches)
        return f"Batch(step {self.plan.number}: {self.num_samples} samples, {num_shards} of the shards here)"


class Shards:
    """One loop over the shards of a batch.

    It is not a generator: Python closes a generator when a loop is left by ``break``, at a time
    that depends on other references, and closing must not end the phase."""

    def __init__(self, batch: Batch, driver: PhaseDriver, upload: Upload | None) -> None:
        self.batch = batch
        self._driver = driver
        self._upload = upload
        self._micro_batches: Iterator[MicroBatchSamples] = iter(())
        self._leader: Batch | None = None
        self._has_finished = self._was_left = False

    def __iter__(self) -> Shards:
        return self

    def __next__(self) -> Any:
        if self._has_finished:
            raise StopIteration
        driver, batch = self._driver, self.batch
        if self._leader is None:
            if self._was_left:
                raise UsageError(
                    f"a loop over batch.shards of step {batch.plan.number} is continued after it was left and that step ended. "
                    "Begin a loop over the shards of the next batch, in the body of `for batch in loader:`.",
                    code="left-loop-continued",
                )
            self._leader = driver.begin_phase(batch)
            leads = self._leader is batch
            self._micro_batches = driver.micro_batches(batch.plan, batch.data, leads)
        else:
            leads = self._leader is batch
            if leads:
                assert driver.phase is not None
                driver.phase.end_shard()
        run = next(self._micro_batches, None)
        if run is None:
            self._has_finished = True
            if leads:
                driver.end_phase()
            raise StopIteration
        micro, data = run
        samples = data if self._upload is None else self._upload.take(micro.index, data)
        # read here: the micro-batch may be a dry run's, in the place of the phase
        phase = driver.phase
        assert phase is not None
        if leads:
            phase.begin_shard(micro, data)
            return samples
        running = phase.micro
        if running is None or (running.shard, running.part) != (micro.shard, micro.part):
            raise UsageError(
                f"the shards of two batches must run side by side, as in zip(a.shards, b.shards): the second batch is at "
                f"{_name(micro)}, and the first at {_name(running)}.",
                code="shards-not-side-by-side",
            )
        phase.received(micro, data)
        return samples

    def drop(self) -> None:
        """Undoes a dry run of a shard, after the script has left the phase. The loop cannot
        continue."""
        self._leader, self._was_left = None, True
        if isinstance(self._micro_batches, Generator):
            self._micro_batches.close()

    @property
    def is_over(self) -> bool:
        """Whether the loop has finished."""
        return self._has_finished

    @property
    def is_follower(self) -> bool:
        """Whether the loop follows a loop over another batch, which leads the phase."""
        return self._leader is not None and self._leader is not self.batch

    def end_following(self) -> None:
        """Ends the loop with a phase that another batch has led."""
        self._has_finished = True


def _name(micro: MicroBatch | None) -> str:
    return "none" if micro is None else f"shard {micro.shard}, part {micro.part}"
