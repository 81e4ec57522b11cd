"""The prepared training loader: one iteration is one step, on every process.

::

    next(loader)  end_step of the previous step (averages, whether a checkpoint is due)
                  next plan and samples from the source
                  begin_step (saves a due checkpoint), yield Batch
    break         closes the generator: driver.leave(exhausted=False)

A script may loop over several prepared loaders at a time, as in ``zip(a, b)`` or nested loops. One
of them *leads*: its pass counts the steps. The others *follow*: they yield batches within its pass,
and each counts its own. The first loader that begins a pass leads (``Loop.enter``).
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from lockstep._base.errors import ConfigError, DataError, UsageError
from lockstep._data.assignment import ShardAssignment
from lockstep._data.batch import Batch, PhaseDriver
from lockstep._data.changed_samples import ChangedSamples, calling_line
from lockstep._data.source import StepData
from lockstep._data.sources import choose_source
from lockstep._data.streams import preserve_rng
from lockstep._data.torch_loader import length_of
from lockstep._data.uploads import Uploads, fetches_ahead
from lockstep._data.worker_copies import WorkerCopies
from lockstep._plan.shards import StepPlan

_NEXT_BATCH = "the next batch of another loader"
"""A call that a shard must not make: each rank would take as many batches as it has shards."""


class Comparison(Protocol):
    """Compares on all ranks what each has read: it must be the same data."""

    def compare(self, description: str) -> None:
        """Compares descriptions of the first samples. Every rank must call it; it blocks until all
        have."""

    def note(self, description: str) -> None:
        """Compares them at the end of the next phase. Every rank must call it."""


class Driver(Protocol):
    """The part of the loop that a prepared loader uses."""

    phases: PhaseDriver
    """The phases of each step."""
    same_data: Comparison
    """Compares the beginnings of passes."""

    @property
    def next_is_done(self) -> bool:
        """Whether ``skips`` would be true."""

    def skips(self) -> bool:
        """Whether the next pass was completed before the run was interrupted, and is skipped. If
        so, counts it."""

    def enter(self, loader: object) -> bool:
        """Begins a pass over ``loader``. True: it leads; False: it follows the
        pass that does."""

    def is_in_pass(self) -> bool:
        """Whether a leading pass is under way."""

    def begin_step(self, plan: StepPlan) -> None:
        """Begins the next step."""

    def begin_following_step(self, loader: Any) -> None:
        """Notes that a loader that follows is about to yield a batch, or has none left."""

    def end_following_pass(self, loader: Any) -> None:
        """Ends a pass that follows the leading one."""

    def end_step(self) -> bool:
        """Ends the step, after the loop's body has run. Returns whether it had a phase."""

    def leave(self, loader: object, *, exhausted: bool, failed: bool) -> None:
        """Ends the leading pass, which is exhausted or was left by ``break`` or an error."""


class _Pass:
    """A pass over a loader.

    Args:
        number: index of the pass among those over this loader, from 0.
        first: number of the pass's first step, as the loader counts them.
        done: number of the pass's steps that were taken before the run was interrupted.
    """

    def __init__(self, number: int, first: int, done: int) -> None:
        self.number = number
        self.first = first
        self.done = done
        """The number of completed steps."""


class PreparedLoader:
    """A training loader prepared by ``team.prepare``. It yields one ``Batch`` per step, the same
    number on every rank.

    ``len()`` counts steps. Other attributes are read from the user's loader, and cannot be set.
    """

    def __init__(self, batches: Iterable[Any], assignment: ShardAssignment, driver: Driver, device: torch.device) -> None:
        self.wrapped = batches
        """The user's loader."""
        self._source = choose_source(batches, assignment)
        self._assignment = assignment
        # Once, before the first pass: lengths may change with the epoch, and launches compare
        # these lines.
        self._lines, self._sample_lines = self._source.describe(), self._source.describe_samples()
        self._driver = driver
        self._uploads = None if device.type == "cpu" else Uploads(device, batches)
        dataset, speaks = getattr(batches, "dataset", None), assignment.rank == 0
        self._changed = ChangedSamples(
            batches if dataset is None else dataset, speaks=speaks, name="batches" if dataset is None else "dataset"
        )
        self._copies = WorkerCopies(batches, speaks=speaks)
        self._epoch = 0
        """The index of the next pass."""
        self._is_shared = assignment.world_size > 1
        self._is_compared = False
        """Whether the ranks have compared their data in this launch's first pass."""
        self._pass = _Pass(0, 1, 0)
        """The newest pass."""
        self._is_running = False
        """Whether a pass is under way."""
        self._iterator: weakref.ref[Generator[Batch]] | None = None
        """The newest iterator."""
        self._newest: Batch | None = None
        """The newest batch that was yielded while this loader followed."""
        self._num_followed = 0
        """The number of batches that this loader has yielded while it followed, in the run."""
        self._skip = 0
        """The number of steps of the next pass that were taken before the run was interrupted. Not
        0 only between ``load_state`` and the beginning of that pass."""
        self._source_before: Any = None
        """The state of the source when the run was interrupted. While ``_skip`` is not 0, a
        checkpoint saves it again, because the source has not moved since."""
        self.made_inside = False
        """Whether the newest iterator that follows was made within the leading pass."""
        self.is_idle = False
        """Whether, in the newest checkpoint, this loader was in a pass that follows and had yet to
        yield a batch in the leading pass. The loop sets it before each save and reads it after a
        resume (``Loop._may_save``)."""
        self._totals: dict[str, list[float]] = {}
        """For each value of ``batch.add``, its weighted sum over the newest pass and the sum of its
        weights."""

    def __len__(self) -> int:
        return self._source.num_steps()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    if not TYPE_CHECKING:  # so that type checkers report unknown attributes too

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_") and name not in ("wrapped", "is_idle", "made_inside"):
                raise UsageError(
                    f"loader.{name} = ... after prepare() has no effect, since lockstep fetches the batches. Set it before "
                    "prepare(), or prepare a second loader. For an attribute that your own class reads, set "
                    f"loader.wrapped.{name}.",
                    code="loader-attribute-set",
                )
            object.__setattr__(self, name, value)

    @property
    def reads_all(self) -> bool:
        """Whether each rank reads whole global batches, of which it keeps its share."""
        return self._source.reads_all

    @property
    def plans_in_worker(self) -> bool:
        """Whether a loader worker plans the steps of a pass, and so must know the blocks of all
        steps at its beginning."""
        return self._source.plans_in_worker

    @property
    def averages(self) -> dict[str, float]:
        """The weighted means of the values of ``batch.add`` over all steps of the newest pass, by
        name. The same on every rank."""
        return {name: total / weight if weight else float("nan") for name, (total, weight) in self._totals.items()}

    def _sums(self) -> dict[str, list[float]]:
        """Returns ``_totals`` plus the totals of ``_newest``, which counts as done."""
        sums = {name: list(pair) for name, pair in self._totals.items()}
        for name, pair in (self._newest.totals if self._newest is not None else {}).items():
            sums[name] = [a + b for a, b in zip(sums.get(name, [0.0, 0.0]), pair, strict=True)]
        return sums

    def _add(self, batch: Batch) -> None:
        """Adds the sums of a batch's phases, once."""
        totals, batch.totals = batch.totals, {}
        for name, (total, weight) in totals.items():
            pair = self._totals.setdefault(name, [0.0, 0.0])
            pair[0] += total
            pair[1] += weight

    def _refuse_older(self) -> NoReturn:
        raise UsageError(
            "this iterator is outdated: a newer iterator of the same prepared loader was created, and a run has one position "
            "per loader. Use the newest one.",
            code="iterator-outdated",
        )

    def describe(self) -> list[str]:
        """Returns lines about the loader as it was prepared, which must be the same on every rank
        and in every launch."""
        return self._lines

    def describe_data(self) -> list[str]:
        """Returns the lines of ``describe``, and lines about samples, which must be the same in
        every launch."""
        return self._lines + self._sample_lines

    def __iter__(self) -> Iterator[Batch]:
        iterator = self._iterate(made_inside=self._driver.is_in_pass())
        # A weak reference: the loop's own one must be the last, so that ``break`` closes the
        # generator immediately.
        self._iterator = weakref.ref(iterator)
        return iterator

    def finish(self) -> None:
        """Ends the pass that is under way, if any. Every rank must call it.

        For a loop that counts steps to ``len(loader)`` and never asks for the end, as libraries
        that drive training have: nothing else shows that it has finished. After the last step, the
        pass is exhausted. Before, it ends as if by ``break``.

        Raises:
            DataError: the loader yields more steps than ``len(loader)``.
        """
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None and inspect.getgeneratorstate(iterator) == inspect.GEN_CREATED and self._driver.next_is_done:
            next(iterator, None)  # the loop had no step to take
        if not self._is_running or iterator is None or inspect.getgeneratorstate(iterator) != inspect.GEN_SUSPENDED:
            return
        length = length_of(self)
        # the newest step counts when the next is asked for
        taken = self._pass.done + (not self._assignment.is_follower)
        if length is None or taken < length:
            iterator.close()
        elif next(iterator, None) is not None:
            iterator.close()
            raise DataError(
                f"loader.finish(): len(loader) is {length}, but the loader has yielded step {length + 1} of a pass, so a "
                "loop that counts to len() would skip samples. Correct the length of the sampler or dataset.",
                code="loader-longer-than-length",
            )

    def _iterate(self, *, made_inside: bool) -> Generator[Batch]:
        if not torch.is_grad_enabled():
            raise UsageError(
                "a prepared loader was iterated with gradients disabled, so this is no training loop. Use "
                "`with team.evaluate(model, loader) as evaluation:` to evaluate on all processes.",
                code="loader-without-gradients",
            )
        if self._driver.skips():
            return
        if not self._driver.enter(self):
            yield from self._iterate_following(made_inside=made_inside)
            return
        driver, exhausted, failed = self._driver, False, False
        # Once, not in each step: Python finds no attribute quickly in a class with __getattr__.
        phases, uploads, changed, copies = driver.phases, self._uploads, self._changed, self._copies
        batch: Batch | None = None
        this_pass = self._begin(driver.phases.step + 1, is_follower=False)
        try:
            for plan, data in self._steps(this_pass):
                driver.begin_step(plan)
                batch = Batch(plan, data, phases, uploads)
                before = changed.look(plan.number, data) if plan.number >= changed.next else None
                if plan.number >= copies.next:
                    copies.look(plan.number)
                yield batch
                if this_pass is not self._pass:
                    self._refuse_older()
                if before is not None:
                    changed.compare(before, calling_line)
                if uploads is not None:
                    uploads.settle()
                this_pass.done += 1
                batch.was_passed_over = not driver.end_step()
                if batch.totals:
                    self._add(batch)
            exhausted = True
        except GeneratorExit:
            # `break` closes this generator, and so does an error that leaves the loop. They cannot
            # be distinguished here.
            failed = sys.is_finalizing()
            raise
        except BaseException:
            failed = True
            raise
        finally:
            if this_pass is self._pass:  # otherwise a newer iterator has closed this pass
                self._is_running = False
                if copies.is_looking:
                    copies.end_pass(phases.step)
                driver.leave(self, exhausted=exhausted, failed=failed)
                if batch is not None and not failed:  # after `break`, completed phases count
                    self._add(batch)

    def take(self, num_steps: int) -> Iterator[Batch]:
        """Yields the first steps of a pass, as an epoch of so many: ``for batch in
        loader.take(1000)``.

        Steps that were taken before the run was interrupted count. (``itertools.islice(loader,
        1000)`` counts from 0 again in a resumed pass, and so takes more.)

        Args:
            num_steps: 1 or more. The pass ends sooner if the loader does.

        Raises:
            ConfigError: ``num_steps`` is less than 1.
        """
        if num_steps < 1:
            raise ConfigError(f"loader.take({num_steps}): an epoch has at least 1 step", code="take-steps")
        return self._take(num_steps)

    def _take(self, num_steps: int) -> Iterator[Batch]:
        done = self._skip
        for batch in self:
            if done >= num_steps:  # an earlier launch took more
                return
            done += 1
            yield batch
            if done == num_steps:
                return

    def _iterate_following(self, *, made_inside: bool) -> Iterator[Batch]:
        """Iterates within the pass of a leading loader (``zip(a, b)``, or a nested loop)."""
        self._driver.phases.check_outside(_NEXT_BATCH)
        if self._skip and self.is_idle and made_inside and not self.made_inside:
            self.abandon()  # the saved iterator was made before the pass, so this is a new one
        self.made_inside, self.is_idle = made_inside, False
        driver = self._driver
        batch: Batch | None = None
        this_pass = self._begin(self._num_followed + 1, is_follower=True)
        try:
            for plan, data in _fetched_apart(self._steps(this_pass)):
                # Counted when it is yielded, not when the next one is requested as in a leading
                # pass: a checkpoint of the current step contains the batch that the step uses.
                this_pass.done += 1
                self._num_followed += 1
                driver.begin_following_step(self)
                self._newest = batch = Batch(plan, data, driver.phases, self._uploads)
                before = self._changed.look(self._num_followed, data) if self._num_followed >= self._changed.next else None
                yield batch
                if this_pass is not self._pass:
                    self._refuse_older()
                if before is not None:
                    self._changed.compare(before, calling_line)
                driver.phases.check_outside(_NEXT_BATCH)
                if self._uploads is not None:
                    self._uploads.settle()
                self._add(batch)
            driver.begin_following_step(self)
        finally:
            if this_pass is self._pass:
                driver.end_following_pass(self)
                self._is_running = False
                if batch is not None:
                    self._add(batch)

    def abandon(self) -> None:
        """Abandons the current pass, which has yielded no batch during a whole leading pass."""
        self._pass, self._is_running = _Pass(0, 1, 0), False
        if self._skip:  # an earlier launch has begun it
            self._epoch, self._skip, self.is_idle = self._epoch + 1, 0, False

    def _begin(self, next_number: int, *, is_follower: bool) -> _Pass:
        """Begins the next pass, or continues an interrupted one."""
        self._assignment.is_follower = is_follower
        self._newest = None
        # A resumed pass keeps the totals of its earlier steps, so that averages are over all of
        # them.
        if not self._skip:
            self._totals = {}
        self._pass = begun = _Pass(self._epoch, next_number - self._skip, self._skip)
        self._epoch, self._skip, self._is_running = self._epoch + 1, 0, True
        return begun

    def _steps(self, begun: _Pass) -> Iterator[StepData]:
        """Returns the steps of a pass that have yet to be taken."""
        if self._uploads is not None:
            self._uploads.settle()  # copies of a pass that was left
        steps = self._source.steps(begun.first, begun.number, begun.done, compared=self._is_shared and not self._is_compared)
        if self._is_shared:
            steps = self._compare(steps, begun)
        if self._uploads is not None and fetches_ahead(self.wrapped):
            steps = self._uploads.one_ahead(steps)
        return self._notify(steps, begun) if self._source.is_told else steps

    def _notify(self, steps: Iterator[StepData], begun: _Pass) -> Iterator[StepData]:
        """Yields the same steps, and notifies the source of each as the script takes it. The source
        cannot know it otherwise: it may have fetched more steps, and nothing reports to it that a
        pass was left."""
        next_step = begun.first + begun.done
        try:
            for step in steps:
                next_step = step[0].number + 1
                self._source.taken(step[0].number)
                yield step
        except Exception:
            self._source.taken(next_step)
            raise
        self._source.ended()

    def _compare(self, steps: Iterator[StepData], begun: _Pass) -> Iterator[StepData]:
        """Yields the same steps, after checking that all ranks have read the same first samples. In
        a launch's first pass it checks immediately, since ranks could wait for gradients of samples
        that others do not have; in later passes, together with the next phase."""
        first = next(steps, None)
        samples = "nothing" if first is None else f"{first[0].num_samples} samples with the digest {first[0].digest[:8]}"
        name = type(getattr(self.wrapped, "dataset", self.wrapped)).__name__
        if self._is_compared:
            place = f"pass {begun.number + 1} over loader {self._assignment.loader} ({name})"
            self._driver.same_data.note(f"{samples} in the first global batch of {place}")
        else:
            self._driver.same_data.compare(f"{samples} in the first global batch of {name}")
            self._is_compared = True
        if first is not None:
            yield first
            yield from steps

    @property
    def next_pass(self) -> int:
        """The index of the next pass over this loader in the run, from 0. Passes of earlier
        launches count."""
        return self._epoch

    @property
    def num_skipped(self) -> int:
        """The number of steps of the next pass that were taken before the run was interrupted: all
        steps, if the pass is skipped."""
        if self._driver.next_is_done and (length := length_of(self)) is not None:
            return length
        return self._skip

    @property
    def held(self) -> set[int]:
        """The ids of the objects whose state is in checkpoints."""
        return self._source.held

    def compared(self) -> str | None:
        """Returns the digest of the samplers' memory, which must be the same on every rank."""
        return self._source.compared()

    def state(self) -> dict[str, Any]:
        """Returns the position after the last step: a tree of plain values and tensors, the same on
        every rank."""
        running = self._is_running
        return {
            "pass": self._epoch - running,
            "skip": self._pass.done if running else self._skip,
            "followed": self._num_followed,
            "totals": self._sums(),
            "source": self._source_before
            if self._skip
            else self._source.state(self._pass.first + self._pass.done - 1 if running else None),
            "idle": self.is_idle and (running or self._skip > 0),
            "inside": self.made_inside,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues from ``state`` with the next pass."""
        self._epoch, self._skip, self._num_followed = state["pass"], state["skip"], state["followed"]
        self._totals = {name: list(pair) for name, pair in state["totals"].items()}
        self.is_idle, self.made_inside = state.get("idle", False), state.get("inside", False)
        self._source_before = state["source"]
        self._source.load_state(state["source"])


def _fetched_apart(steps: Iterator[StepData]) -> Iterator[StepData]:
    """Yields the same steps. The random stream of the running step continues after each, as if
    nothing had been fetched."""
    while True:
        with preserve_rng():
            step = next(steps, None)
        if step is None:
            return
        yield step
