"""The life of a step: where in the run this process is, and what happens when its parts begin and end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from lockstep.data.batch import Batch, Shards
from lockstep.data.batches import length_of
from lockstep.data.loader import PreparedLoader
from lockstep.data.streams import Purpose, reseed
from lockstep.errors import DataError, LossError, UsageError
from lockstep.ledger import Ledger
from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep, StepPlan
from lockstep.prepare.sums import is_sum
from lockstep.prepare.watched import Watched, parameters_of
from lockstep.recovery.journey import Journey
from lockstep.stopping import say
from lockstep.sync.gradients import Gradients, put_back, set_aside
from lockstep.sync.protocol import Sync


class Loop:
    """The position of this process in the run, and the one that moves it. The Driver of the prepared loaders.

    Args:
        seed: of the run.
        num_shards: V.
        sync: how gradients meet.
        ledger: of the numbers of each phase.
        watched: the prepared objects that steps act on.
        journey: the way of this launch through the script.
    """

    def __init__(self, seed: int, num_shards: int, sync: Sync, ledger: Ledger, watched: Watched, journey: Journey) -> None:
        self.step = 0
        self.epoch = 0
        self.micro: MicroStep | None = None
        """The micro-step that runs; None: outside of ``batch.shards``."""
        self.num_shards = num_shards
        self.num_epochs: int | None = None
        self.listen(())
        self.seed = seed
        self._sync = sync
        self._ledger = ledger
        self._watched = watched
        self._journey = journey
        self._leader: PreparedLoader | None = None
        """The loader whose pass counts the steps."""
        self._plan: StepPlan | None = None
        """Of the step at hand."""
        self._batch: Batch | None = None
        """Whose shards are being run: the phase at hand."""
        self._num_phases = 0
        """Phases of the step at hand that are over."""
        self._opened: list[Shards] = []
        """Loops over shards that the script has asked for since the last phase."""
        self._carried: Gradients = {}
        """Gradients from before the phase, to which its own are added."""
        self._seen: set[tuple[int, int]] = set()
        """Phases and backward calls whose loss was looked at."""
        self._was_left = False
        """Whether the newest pass was left inside ``batch.shards``, and that has still to be said."""
        self._is_said = False
        """Whether the script was told already of something that does not belong into the phase at hand."""
        self._num_in_pass = 0
        self._num_passes = 0
        self._beside: dict[PreparedLoader, int] = {}
        """Passes beside others that are open: in which pass of the leading loader they have given a batch last. Between two of
        those nobody can tell whether the script resumes them or begins them anew, so no checkpoint is cut there."""
        self._owes_tick = False
        """Whether the ranks have still to talk about the last step, because the loop was left in it."""
        self._error_before = getattr(sys, "last_value", None)

    # Where the script is

    @property
    def next_step(self) -> int:
        """See Driver."""
        return self.step + 1

    @property
    def in_step(self) -> bool:
        """Whether the body of a loop over a prepared loader runs."""
        return self._plan is not None

    @property
    def is_replaying(self) -> bool:
        """Whether what runs was done already before the interruption, so that nothing of it is noted again."""
        return self._journey.is_replaying

    def check_outside(self, what: str) -> None:
        """See PhaseDriver.

        Raises:
            UsageError: a loop over ``batch.shards`` runs, or was left before its end.
        """
        if self._was_left:
            self._was_left = False
            raise UsageError(
                f"{what}: in step {self.step + 1} the loop over batch.shards was left before its end, by break or an error "
                "that was caught, so its gradients have not met, and the step is discarded. Leave the outer loop behind it."
            )
        if self._batch is None:
            return
        self._is_said = True
        at = f" in step {self.step}, shard {self.micro.shard}" if self.micro is not None else ""
        raise UsageError(
            f"{what} inside batch.shards{at}: there each process runs only its own shards, so the others would not do the "
            "same. Call it once a step, behind the loop over batch.shards. (If it stands there: that loop was left before its "
            "end, by break or an error that was caught, so its gradients have not met. Run it to its end, with `continue`.)"
        )

    def listen(self, listeners: Sequence[Listener]) -> None:
        """Who is told what happens, in this order."""
        self._told = {
            name: tuple(getattr(one, name) for one in listeners if getattr(type(one), name) is not plain)
            for name, plain in vars(Listener).items()
            if not name.startswith("_")
        }
        """For each method of Listener, those who have one of their own."""

    def _tell(self, name: str, *args: Any, **kwargs: Any) -> None:
        for tell in self._told[name]:
            tell(*args, **kwargs)

    # Epochs

    def enter_epochs(self, num_epochs: int) -> int:
        """A loop over ``team.epochs()`` begins: returns its first epoch."""
        first = self._journey.enter_epochs(num_epochs)
        self._catch_up()
        return first

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """An epoch begins: what was drawn before it must not matter to one that is begun again after an interruption."""
        self.num_epochs = num_epochs
        self.epoch = epoch
        self._journey.begin_epoch(epoch)
        self._catch_up()
        self._reseed_between(epoch)

    def end_epoch(self, epoch: int) -> None:
        """It is over. Every rank must call it."""
        self.report()
        self._journey.end_epoch(epoch, self.step, is_in_pass=self._leader is not None or bool(self._beside))

    def leave_epochs(self, num_epochs: int | None) -> None:
        """The loop over epochs has come to its end; or it was left before, with None."""
        self._journey.leave_epochs(num_epochs, self.step)
        self._catch_up()
        self._reseed_between(0)  # a launch that goes on behind the loop has not drawn what was drawn in it

    def _reseed_between(self, epoch: int) -> None:
        if self._leader is None:
            reseed(self.seed, Purpose.EPOCH, self._journey.section, epoch)

    def _catch_up(self) -> None:
        """The journey may have come to where the run resumes."""
        if self._journey.step_reached is not None:
            self.step, self._journey.step_reached = self._journey.step_reached, None

    # Passes

    def skips(self) -> bool:
        """See Driver."""
        if self._leader is not None or not self._journey.skips():
            return False
        self._catch_up()
        if not self._journey.is_replaying:
            self.resume_stream()  # as after the pass
        return True

    def enter(self, loader: Any) -> bool:
        """See Driver."""
        if self._leader is loader:  # its earlier iterator was left behind unfinished
            self.leave(loader, exhausted=False, failed=False)
        if self._leader is not None:
            return False
        self.report()
        self._journey.begin_pass()
        self._catch_up()
        self._leader = loader
        self._num_passes += 1
        self._num_in_pass = done = loader.num_skipped
        length = length_of(loader)
        self._tell("begin_pass", self.epoch, self.num_epochs, length, done)
        return True

    def leave(self, loader: object, *, exhausted: bool, failed: bool) -> None:
        """See Driver."""
        if self._leader is not loader:
            return
        failed = failed or self.script_failed()
        if self._plan is not None:
            self._leave_body(failed=failed)
        self._leader = None
        if failed:
            return
        self.resume_stream()
        if exhausted:  # then every rank is here
            self._tell("flush")
        self._tell("end_pass", self.step, exhausted=exhausted)
        for other in [other for other, newest in self._beside.items() if newest < self._num_passes]:
            other.abandon()
            del self._beside[other]
        self._journey.end_pass(self.step, exhausted=exhausted and not self._beside)
        if exhausted and self._num_in_pass == 0:
            raise DataError(
                "a pass over a prepared loader had no global batch, so nothing was learnt: the data set is empty, its "
                "sampler or batch sampler yields nothing (or empty batches), or drop_last=True left out the only one"
            )

    def _leave_body(self, *, failed: bool) -> None:
        """`break`: a step counts if it has a phase that is over."""
        plan, self._plan = self._plan, None
        assert plan is not None
        if not failed and self._batch is None and self._num_phases > 0:
            self._take_step(plan)
            # `break`, or an error that ends the script: they look alike, and after an error nobody may be waited for.
            self._owes_tick = True
            return
        self._was_left = self._batch is not None and not failed and not self._is_said
        self._drop_phase()
        self._tell("drop")
        self.step -= not failed

    # Steps

    def compare_data(self, found: str) -> None:
        """See Driver."""
        self.check_outside("the first batch of a loader")
        self._ledger.compare_data(found)

    def begin_step(self, plan: StepPlan) -> None:
        """See Driver."""
        if self._journey.is_due and all(newest == self._num_passes for newest in self._beside.values()):
            self._tell("flush")
            self._journey.save_if_due(self.step)
        self.step += 1
        self._plan = plan
        self._num_phases = 0
        self._opened = []
        self._tell("begin_step", self.step)
        self.resume_stream()

    def goes_along(self, loader: PreparedLoader) -> None:
        """See Driver."""
        self._beside[loader] = self._num_passes

    def went(self, loader: PreparedLoader) -> None:
        """See Driver."""
        self._beside.pop(loader, None)

    def end_step(self) -> None:
        """See Driver."""
        self.check_outside("the next step")
        plan, self._plan = self._plan, None
        assert plan is not None
        self._take_step(plan)
        self._tell("tick", self.step)

    def _take_step(self, plan: StepPlan) -> None:
        self._num_in_pass += 1
        self._tell("end_step", self.step, plan.num_samples)

    def resume_stream(self) -> None:
        """See Driver."""
        micro = self.micro
        if micro is not None:
            reseed(self.seed, Purpose.TRAIN, self.step, micro.shard, micro.part, self._num_phases)
        elif self._plan is not None:
            reseed(self.seed, Purpose.STEP, self.step, self._num_phases)
        else:
            reseed(self.seed, Purpose.TAIL, self.step)

    # Phases

    def open(self, shards: Shards) -> None:
        """See PhaseDriver."""
        self._opened.append(shards)

    def begin_phase(self, batch: Batch) -> Batch:
        """See PhaseDriver."""
        if self._batch is not None and self._batch is not batch and self.micro is not None:
            filled, of_other = ([min(n, self.num_shards) for n in one.plan.sizes] for one in (self._batch, batch))
            if filled != of_other:
                raise UsageError(
                    f"the shards of two batches side by side, as zip(a.shards, b.shards) does it: {filled} shards of the first "
                    f"have samples, and {of_other} of the second, so samples would be lost. Give both loaders global batches "
                    "of equally many samples, or of more than there are shards (drop_last=True)."
                )
            return self._batch
        self.check_outside("another loop over batch.shards")
        if self._plan is None:
            raise UsageError(
                "batch.shards outside of the loop that yielded the batch: run over its shards in the loop's body"
            )
        self._batch, self._is_said = batch, False
        self._carried = set_aside(self._watched.parameters)
        self._ledger.begin_phase(self._num_phases, batch.plan.sizes)
        self._sync.begin_phase(batch.plan, self._num_phases)
        self._watched.begin_phase()
        self._tell("begin_phase", self._num_phases)
        return batch

    def begin_shard(self, micro: MicroStep) -> None:
        """See PhaseDriver."""
        self.micro = micro
        self._ledger.begin_shard(micro)
        self._sync.begin_shard(micro)
        self._tell("begin_shard", micro)
        self.resume_stream()

    def received(self, micro: MicroStep, data: Any) -> None:
        """See PhaseDriver."""
        self._tell("received", micro, data)

    def end_shard(self) -> None:
        """See PhaseDriver."""
        self._watched.end_shard(self.step, self._ledger.num_calls)
        self._ledger.end_shard()
        self._sync.end_shard()
        self._tell("end_shard")
        self.micro = None

    def end_phase(self) -> None:
        """See PhaseDriver."""
        batch = self._batch
        assert batch is not None
        self._watched.check_unchanged(self.step)
        outcome, values = self._ledger.settle(self._sync.unforeseen(), self.step)
        self._sync.end_phase(outcome)
        self._watched.unscale()
        put_back(self._carried)
        self._carried = {}
        means = {name: total / weight if weight else float("nan") for name, (total, weight) in values.items()}
        batch.totals.update(values)
        batch.values.update(means)
        for shards in self._opened:
            if shards.batch is not batch and shards.go_along():
                shards.batch.values.update(means)
        self._opened = []
        self._batch = None
        self._tell("end_phase", self._num_phases)
        self._num_phases += 1
        self.resume_stream()

    def _drop_phase(self) -> None:
        if self._batch is not None:
            self._sync.drop()
            self._watched.before_backward()
            put_back(self._carried)
        self._batch = self.micro = None
        self._carried = {}

    # What the script does

    def backward(self, loss: Any, weight: float | None, reduction: str | None, options: dict[str, Any]) -> None:
        """Check a shard's loss, and run its backward pass."""
        micro = self.micro
        if micro is None:
            raise UsageError(
                "backward() outside of batch.shards: there is no shard for its gradients to belong to. Call it in the inner "
                "loop: `for batch in loader: for images, labels in batch.shards: ... team.backward(loss)`, over the loader "
                "that prepare() returned."
            )
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise LossError(f"the loss must be a scalar tensor, and is {shape}: average it over the shard's samples")
        if not loss.requires_grad:
            raise LossError(
                "the loss does not depend on any parameter that learns, so it has no gradient: was it detached, turned into "
                "a number on the way, or computed under no_grad?"
            )
        call = self._ledger.num_calls
        if reduction is None and weight is None and self.num_shards > 1 and (self._num_phases, call) not in self._seen:
            self._seen.add((self._num_phases, call))
            if is_sum(loss, micro.num_samples):
                raise LossError(
                    f"the loss of shard {micro.shard} is a sum over its {micro.num_samples} samples, where a mean is expected: "
                    f"averaged over {self.num_shards} shards it would be that much smaller than on one device. Say so: "
                    "team.backward(loss, reduction='sum'); or use a mean. (If it is none: reduction='mean'.)"
                )
        share = self._ledger.call(weight, reduction, micro)
        self._tell("before_backward", loss, weight)
        run: Callable[..., None] = self._sync.backward
        for formats in self._watched.formats:
            run = functools.partial(formats.backward, run)
        self._watched.before_backward()
        run(self._watched.scale(loss), call, share, options)
        self._watched.after_backward()
        self._tell("after_backward")

    def add(self, weight: float | None, values: dict[str, Any]) -> None:
        """See PhaseDriver."""
        if self.micro is None:
            raise UsageError(
                f"batch.add({', '.join(values)}) outside of batch.shards: it notes what one shard gave. What is equal on all "
                "ranks needs no mean: use the value itself, or team.log()."
            )
        self._ledger.add(weight, values)

    def shard_weight(self) -> float | None:
        """What the shard that runs weighs in means; None: outside of ``batch.shards``."""
        return None if self.micro is None else self._ledger.weight

    def before_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        """``optimizer.step()`` is about to act: of any optimizer of the process.

        Raises:
            UsageError: inside ``batch.shards``, or with gradients that are this rank's own.
        """
        name = type(optimizer).__name__
        if self._sync.replaced and not self._sync.replaced.keys().isdisjoint(parameters_of(optimizer)):
            raise UsageError(
                f"{name}.step(): this optimizer was not given to team.prepare(), and strategy='fsdp' deals parameters out, so "
                "those that it has are the model's no more, and it would train nothing. Prepare it together with its model."
            )
        if not self._watched.trains(optimizer):
            return
        self.check_outside(f"{name}.step()")
        if not self.in_step:
            return
        stranger = self._watched.find_stranger(optimizer)
        if stranger is not None:
            raise UsageError(
                f"{name}.step() in step {self.step}: a parameter of shape {tuple(stranger.shape)} has a gradient and belongs "
                "to no prepared model, so every process would train one of its own. A layer that is added or replaced after "
                "prepare() does not take part: build the whole model first."
            )
        self._tell("before_optimizer", optimizer)

    # Between passes

    def report(self) -> None:
        """Bring together what was logged and measured. Every rank must call it; called between passes."""
        self.check_outside("the end of the pass")
        if self._owes_tick:
            self._owes_tick = False
            self._tell("tick", self.step)
        self._tell("flush")

    def script_failed(self) -> bool:
        """Whether an uncaught exception is ending the script: the interpreter notes it before anything is closed.

        Those from before the run do not count, and in a notebook or an interactive session none does: it goes on.
        """
        if hasattr(sys, "ps1"):
            return False
        return getattr(sys, "last_value", None) is not self._error_before

    def close(self, *, failed: bool) -> None:
        """The script is over. Unless it failed, or was stopped, every rank must call it."""
        if self._leader is not None:  # the script still holds an iterator
            self.leave(self._leader, exhausted=False, failed=failed)
        if self._was_left and not failed:
            self._was_left = False
            say(
                f"WARNING: step {self.step + 1} was left before the end of its loop over batch.shards, by break or an error "
                "that was caught: it is discarded."
            )
        if not failed:
            self.report()
        self._journey.close(self.step, failed=failed)
