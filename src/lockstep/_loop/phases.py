"""The phases of a step: loops over ``batch.shards``, each of which ends by combining gradients,
buffers and values.

The script's own ``for`` loops are the clock. Each ``next()`` first ends what came before it::

    script                           calls                          what happens
    for batch in loader:             Loop.begin_step             -> begin_step: a Step
        for x in batch.shards:       1st next()                  -> begin_phase: a Phase
                                                                    Phase.begin_shard
            team.backward(loss)                                  -> Phase.backward
            batch.add(loss=loss)                                 -> Phase.numbers.add
                                     2nd next()                  -> Phase.end_shard, begin_shard
                                     next() behind the last one  -> Phase.end_shard
                                                                    Phase.end (all wait)
        optimizer.step()             a hook of PyTorch           -> before_optimizer
                                     the loader's next()         -> end_step

One iteration of ``batch.shards`` is one micro-batch. That is a whole shard, unless ``accumulate``
gives a step several global batches: then a shard has one micro-batch for each of them, and
begin_shard and end_shard run for each.

So nothing runs at the end of a shard or phase if the script leaves its loop early: that is noticed
at the next call that belongs outside (``check_outside``), or when the loader's iterator is dropped
(``leave_step``, which abandons the phase). A rank without samples makes no shard, but runs
begin_phase and end_phase as the others do, since its loop asks ``batch.shards`` once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lockstep._base.errors import ConfigError, LossError, UsageError, unknown_name
from lockstep._base.reports import warn
from lockstep._data.batch import Batch, PhaseDriver, Shards, own_micro_batches
from lockstep._data.evaluation_pass import RunningEvaluations
from lockstep._data.shared import Shared
from lockstep._data.streams import Purpose, reseed
from lockstep._data.uploads import Upload
from lockstep._data.values import check_weight
from lockstep._listener import Listeners
from lockstep._loop import refusals
from lockstep._loop.phase import Phase, RunParts
from lockstep._loop.refusals import is_sum, may_be_sum
from lockstep._loop.step import Step
from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._prepare.state_adapters import parameters_of
from lockstep._prepare.unprepared import refuse

_STEP = Purpose.STEP  # to look up a member of an Enum takes 0.4 µs


class Position(NamedTuple):
    """A place in a run."""

    step: int
    """The number of the current step; between steps, of the last one."""
    phase: int
    """The number of completed phases of that step."""
    shard: int | None
    """The running shard; None: outside of ``batch.shards``."""


class Phases(PhaseDriver):
    """The phases of the current step, and the ``PhaseDriver`` of its batches.

    Args:
        parts: what all phases use.
        listeners: notified of steps, phases and shards.
        gather: gathers what the shards of all ranks have shared. A collective.
    """

    def __init__(self, parts: RunParts, listeners: Listeners, gather: Callable[[list[Shared]], list[Shared]]) -> None:
        self.parts = parts
        self.num_shards = parts.num_shards
        self.trained, self.guards = parts.trained, parts.guards
        self._gather = gather
        self._listeners = listeners
        self._on = listeners.on
        self.step = 0
        """The number of the current step; between steps, of the last one."""
        self.phase: Phase | None = None
        """The running phase, or the dry run in its place; None: outside of ``batch.shards``."""
        self.was_left = 0
        """The step that was left inside ``batch.shards`` and is yet to be reported; 0: none."""
        self.has_loader = False
        """Whether a training loader was prepared."""
        self.may_warn_of_loader = False
        """Whether this process is the one of several that may warn of a missing loader."""
        self.evaluations = RunningEvaluations()
        """The loops over shards of evaluation batches."""
        self.micro_batches = own_micro_batches
        """The function that gives the micro-batches to run of a batch. An instrument that repeats
        shards sets another one (``loop.dry_runs``)."""
        self.found_wrong = False
        """Whether an instrument has found a result of the run wrong, so that nothing may be saved
        any more."""
        self._current: Step | None = None
        """The current step; None: between steps."""
        self._num_done = 0
        """The number of completed phases of the step before."""
        self._checked: set[tuple[int, int]] = set()
        """The phases and backward calls whose loss was checked for being a sum."""
        self._has_warned = False
        """Whether the warning of a loss that may be a sum was printed."""

    # The step

    @property
    def in_step(self) -> bool:
        """Whether the body of a loop over a prepared loader is running."""
        return self._current is not None

    @property
    def in_phase(self) -> bool:
        """Whether a loop over ``batch.shards`` is running."""
        return self.phase is not None

    @property
    def num_done(self) -> int:
        """The number of completed phases of the current step, or of the last one."""
        step = self._current
        return self._num_done if step is None else step.num_done

    @property
    @override
    def micro(self) -> MicroBatch | None:
        phase = self.phase  # once: another thread may ask while this one ends the phase
        return None if phase is None else phase.micro

    def position(self) -> Position:
        """Returns where this process is now. May be called from another thread."""
        micro = self.micro
        return Position(self.step, self.num_done, None if micro is None else micro.shard)

    @property
    @override
    def is_dry_run(self) -> bool:
        """Whether a shard is being repeated without effect on the run."""
        return self.phase is not None and self.phase.is_dry_run

    def begin_step(self, plan: StepPlan) -> None:
        """Begins a step with the next global batch."""
        self.step += 1
        self._current = Step(plan)
        for notify in self._on.begin_step:
            notify(self.step)
        reseed(self.parts.seed, _STEP, self.step, 0)

    def end_step(self) -> None:
        """Ends the step, after the loop's body has run.

        Raises:
            UsageError: like ``check_outside``.
        """
        if self.phase is not None:
            self.check_outside("the next step")
        current, self._current = self._current, None
        assert current is not None
        self._num_done = current.num_done
        step, num_samples = self.step, current.plan.num_samples
        for notify in self._on.end_step:
            notify(step, num_samples)

    def leave_step(self, *, failed: bool) -> bool:
        """Leaves the loop's body by ``break`` or an error. Returns whether the step counts: it does
        if a phase was completed and none is open."""
        # All ranks decide alike without a message: a completed phase is one that all have
        # completed.
        if not failed and self.phase is None and self.num_done > 0:
            self.end_step()
            return True
        left, self._current = self._current, None
        assert left is not None
        self._num_done = left.num_done
        if self.phase is not None:
            if not failed and not self.phase.has_refused:
                self.was_left = self.step
            for shards in left.opened:
                shards.drop()  # with a dry run in the place of the phase, if there is one
            self.phase.abandon()
            self.phase = None
        self._listeners.abandon_step()
        # The next step takes this number. After an error it stays, for messages that name the step.
        self.step -= not failed
        return False

    @override
    def check_outside(self, call: str, remedy: str = "Call it once a step, after the loop over batch.shards.") -> None:
        """Checks that a call is outside of ``batch.shards``.

        Raises:
            UsageError: a loop over ``batch.shards`` runs, or was left before its end.
            AbandonedError: it was left, and an error is being handled.
        """
        left_step, self.was_left = self.was_left, 0
        if left_step and (error := sys.exc_info()[1]) is not None:
            raise refusals.abandoned(call, left_step, error)
        if left_step:
            raise refusals.left_early(call, left_step)
        if self.phase is None:
            if self.evaluations.innermost is not None:
                self.evaluations.innermost.refuse_inside(call)
            return
        self.phase.has_refused = True
        micro = self.phase.micro
        where = f" in step {self.step}, shard {micro.shard}" if micro is not None else ""
        by_zip = " or zip(other, batch.shards) (write zip(batch.shards, other))" if micro is None or micro.is_last else ""
        raise UsageError(
            f"{call} inside batch.shards{where}, where each process runs different shards. {remedy} If it is outside already, "
            f"that loop was left early, by break or a caught error{by_zip}: use `continue`, so that it runs to its end.",
            code="inside-shards",
        )

    def check_zero_grad(self, call: str) -> None:
        """Checks that a call that clears gradients is outside of ``batch.shards``.

        Raises:
            UsageError: like ``check_outside``.
        """
        if self.phase is None and not (self.was_left or self.evaluations.innermost):
            return
        self.check_outside(
            call,
            "A shard begins without gradients: call it once a step, after the loop over batch.shards. For the gradient of an "
            "input use torch.autograd.grad(loss, inputs), which does not change the gradients of the weights.",
        )

    def check_scaler(self, call: str) -> None:
        """Checks that a call of the script's GradScaler is outside of ``batch.shards``, and that
        there are gradients.

        Raises:
            UsageError: like ``check_outside``, or there are none.
        """
        self.check_outside(call)
        if self.in_step and not self.guards.gradients.have_been:
            self.guards.gradients.check_first_step(call, self.step)

    def resume_stream(self) -> None:
        """Returns to the random stream of the step, after the streams of a phase.

        A stream is a sequence of random numbers with its own seed: outside of ``batch.shards`` it
        is derived from the run's seed, the step and the number of completed phases, and inside
        from the shard and its part, too."""
        reseed(self.parts.seed, _STEP, self.step, self.num_done)

    @override
    def gather(self, mine: list[Shared]) -> list[Shared]:
        """Gathers what the shards of all ranks have shared. Every rank must call it."""
        return self._gather(mine)

    # Phases

    @override
    def open(self, batch: Batch, upload: Upload | None) -> Shards:
        """Returns a loop over a batch's shards. Local."""
        shards = Shards(batch, self, upload)
        if self._current is not None:
            self._current.opened.append(shards)
        return shards

    @override
    def begin_phase(self, batch: Batch) -> Batch:
        """Begins a phase on a batch's shards, or joins one that another batch leads. Local."""
        # A second batch while a shard runs: zip(a.shards, b.shards). Its shards are paired with
        # those of the batch that leads, so both must have as many, on the same ranks.
        if self.phase is not None and self.phase.batch is not batch and self.phase.micro is not None:
            leader = self.phase.batch
            first, second = ([min(n, self.parts.num_shards) for n in b.plan.sizes] for b in (leader, batch))
            if first != second:
                raise refusals.uneven_side_by_side(first, second)
            if batch.plan.blocks.sizes != leader.plan.blocks.sizes:
                raise refusals.moved_side_by_side()
            return leader
        if self.phase is not None:
            self.check_outside("another loop over batch.shards")
        if self._current is None or batch.was_passed_over:
            raise refusals.step_is_over(batch.plan.number)
        self.phase = Phase(self.parts, self.step, self._current.num_done, batch)
        self.phase.begin()
        return batch

    def exchange(self) -> None:
        """Exchanges the weights and values of the running phase before it ends. Every rank must
        call it, after its shards have run; it blocks until all have."""
        assert self.phase is not None
        assert self._current is not None
        self.phase.exchange(self._current.followers(self.phase.batch.plan))

    @override
    def end_phase(self) -> None:
        """Ends the phase: combines this process's shards with the shards of the other ranks. Every
        rank must call it; it blocks until all have."""
        phase, step = self.phase, self._current
        assert phase is not None
        assert step is not None
        is_only_loop = len(step.opened) == 1
        agreed = phase.end(0 if is_only_loop else step.followers(phase.batch.plan))
        if not is_only_loop:
            values = phase.batch.values
            step.end_following(agreed.followers, {name: values[name] for name in agreed.values})
        else:
            step.opened = []
        self.phase = None
        for notify in self._on.end_phase:
            notify(phase.number)
        step.num_done += 1
        if self.parts.has_streams:
            self.resume_stream()

    # Calls of the script

    def backward(self, loss: Any, weight: float | Tensor | None, reduction: str | None, options: dict[str, Any]) -> None:
        """Checks a shard's loss and runs its backward pass, as ``Team.backward`` describes."""
        phase = self.phase
        if phase is not None and phase.cut_short is not None and phase.micro is not None:
            raise refusals.cut_short(phase.micro, phase.cut_short) from phase.cut_short
        if not self.trained.parameters:
            raise UsageError(
                "backward() before prepare(): prepare the model first, so that its gradients are synchronized.",
                code="nothing-prepared",
            )
        if reduction not in (None, "mean", "sum"):
            raise unknown_name("reduction", str(reduction), ("mean", "sum"))
        if reduction == "sum" and weight is not None:
            raise ConfigError(
                "backward(weight=..., reduction='sum'): a sum is not weighted. Pass only one of them.", code="weighted-sum"
            )
        if weight is not None:
            weight = check_weight(weight, None, "backward")
        if phase is None or phase.micro is None:
            raise refusals.backward_outside(has_loader=self.has_loader)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise LossError(
                f"the loss must be a scalar tensor, and is {shape}: average it over the shard's samples.",
                code="loss-not-scalar",
            )
        if not loss.requires_grad:
            raise LossError(
                "the loss does not depend on any parameter with requires_grad, so it has no gradient. It may have been "
                "detached, converted to a number, or computed under no_grad.",
                code="loss-without-gradient",
            )
        micro, num_shards = phase.micro, self.parts.num_shards
        if reduction is None and weight is None and num_shards > 1:
            at = phase.number, phase.numbers.num_calls
            if at not in self._checked:
                self._checked.add(at)
                if is_sum(loss, micro.num_samples):
                    raise refusals.sum_for_a_mean(micro, num_shards)
                if micro.shard == 0 and not self._has_warned and may_be_sum(loss, micro.num_samples):
                    self._has_warned = True
                    warn(refusals.perhaps_sum_for_a_mean(micro, num_shards), code="loss-may-be-sum")
        phase.backward(loss, weight, reduction, options)

    @override
    def add(self, weight: float | Tensor | None, values: dict[str, Any], reduction: str | None = None) -> None:
        """Records values of the running shard. Local."""
        phase = self.phase
        if phase is None or phase.micro is None:
            raise UsageError(
                f"batch.add({', '.join(values)}) outside of batch.shards: it records values of the running shard. For a value "
                "that is equal on all ranks use team.log().",
                code="outside-shards",
            )
        phase.numbers.add(weight, values, phase.micro, reduction)

    def before_optimizer(self, optimizer: Optimizer, args: Sequence[Any], options: dict[str, Any]) -> None:
        """Checks a call of ``optimizer.step()``: registered as a hook for all optimizers of the
        process.

        Args:
            optimizer: any.
            args: of the call, the optimizer first. With another one, or with options, it may
                compute gradients itself.
            options: of the call.

        Raises:
            UsageError: it is inside ``batch.shards``, or there are no gradients, or some that were
                not synchronized.
        """
        if self.parts.strategy.replaced and not self.parts.strategy.replaced.keys().isdisjoint(parameters_of(optimizer)):
            raise UsageError(
                f"{_step_of(optimizer)}: this optimizer was not passed to team.prepare(), which has replaced the model's "
                "parameters (strategy='fsdp' shards them), so stepping it has no effect. Prepare it together with its model.",
                code="optimizer-not-prepared",
            )
        trains, unprepared = self.trained.sort_out(optimizer)
        if not trains:
            if unprepared is not None:
                raise refuse(unprepared.shape, f"{_step_of(optimizer)} in step {self.step}: ")
            if self.in_step and not self.in_phase:
                self.guards.unprepared.note(optimizer)
                for notify in self._on.before_other_optimizer:
                    notify(optimizer)
            return
        if self.phase is not None or self.was_left or self.evaluations.innermost:
            self.check_outside(_step_of(optimizer))
        if self._current is None:
            self._check_loader(optimizer)
            return
        if unprepared is not None:
            raise refuse(unprepared.shape, f"{_step_of(optimizer)} in step {self.step}: ")
        if len(args) == 1 and not options and not self.guards.gradients.have_been:
            self.guards.gradients.check_first_step(_step_of(optimizer), self.step)
        for notify in self._on.before_optimizer:
            notify(optimizer)

    def _check_loader(self, optimizer: Optimizer) -> None:
        """Warns once of a step with gradients if no loader was prepared. (A step without gradients
        only creates the optimizer's state.)"""
        if (
            self.has_loader
            or not self.may_warn_of_loader
            or all(parameter.grad is None for parameter in parameters_of(optimizer))
        ):
            return
        self.may_warn_of_loader = False
        warn(refusals.no_loader(_step_of(optimizer)), code="no-loader")


def _step_of(optimizer: Optimizer) -> str:
    """Returns the call, for messages."""
    return f"{type(optimizer).__name__}.step()"
