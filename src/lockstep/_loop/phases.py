"""The phases of a step: loops over ``batch.shards``, each of which ends by combining gradients,
buffers and values.

The script's own ``for`` loops are the clock. Each ``next()`` first ends what came before it::

    script                           calls                          here
    for batch in loader:             Loop.begin_step             -> begin_step
        for x in batch.shards:       1st next()                  -> begin_phase, begin_shard
            team.backward(loss)                                  -> backward
            batch.add(loss=loss)                                 -> add
                                     2nd next()                  -> end_shard, begin_shard
                                     next() behind the last one  -> end_shard, end_phase (all wait)
        optimizer.step()             a hook of PyTorch           -> before_optimizer
                                     the loader's next()         -> end_step

One iteration of ``batch.shards`` is one micro-batch. That is a whole shard, unless ``accumulate``
gives a step several global batches: then a shard has one micro-batch for each of them, and
begin_shard and end_shard run for each.

So nothing runs at the end of a shard or phase if the script leaves its loop early: that is noticed
at the next call that belongs outside (``check_outside``), or when the loader's iterator is dropped
(``leave_step``). A rank without samples makes no shard, but runs begin_phase and end_phase as the
others do, since its loop asks ``batch.shards`` once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lockstep._base.errors import ConfigError, LossError, UsageError, unknown_name
from lockstep._base.reports import warn
from lockstep._data.batch import Batch, PhaseDriver, Shards, own_micro_batches
from lockstep._data.evaluation_pass import EvaluationBatch
from lockstep._data.shared import Shared
from lockstep._data.streams import Purpose, reseed
from lockstep._data.values import check_weight
from lockstep._events.measure.step_clock import BEGINNING, ENDING, IN_BACKWARD, IN_FORWARD, IN_SCRIPT, Mark
from lockstep._listener import Listeners
from lockstep._loop import refusals
from lockstep._loop.exchange import Agreed, Peers, exchange
from lockstep._loop.numbers import PhaseNumbers
from lockstep._loop.refusals import is_sum, may_be_sum
from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._prepare.guards import ShardGuards
from lockstep._prepare.state_adapters import parameters_of
from lockstep._prepare.trained import TrainedObjects
from lockstep._prepare.unprepared import refuse
from lockstep._sync.gradients import Gradients, detach_grads, put_back
from lockstep._sync.protocol import ShardSync, Sync


class Sinks(NamedTuple):
    """The receivers of what a micro-batch computes, records and reports."""

    numbers: PhaseNumbers
    sync: ShardSync
    methods: Mapping[str, Sequence[Callable[..., None]]]
    """The functions to call at each event, as ``Listeners.methods``."""
    mark: Mark


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
        seed: the root of the run's random streams.
        num_shards: V.
        sync: synchronizes gradients and buffers.
        peers: the ranks with which each phase exchanges its weights and values.
        trained: what was prepared so far.
        guards: of what is trained.
        listeners: notified of steps, phases and shards.
        mark: notes the time at which an activity begins.
        gather: gathers what the shards of all ranks have shared. A collective.
    """

    def __init__(
        self,
        seed: int,
        num_shards: int,
        sync: Sync,
        peers: Peers,
        trained: TrainedObjects,
        guards: ShardGuards,
        listeners: Listeners,
        mark: Mark,
        gather: Callable[[list[Shared]], list[Shared]],
    ) -> None:
        self._gather = gather
        self.seed = seed
        self.num_shards = num_shards
        self.step = 0
        """The number of the current step; between steps, of the last one."""
        self.micro: MicroBatch | None = None
        """The running micro-batch; None: outside of ``batch.shards``."""
        self.num_done = 0
        """The number of completed phases of the current step: the index of the running one."""
        self.was_left = 0
        """The step that was left inside ``batch.shards`` and is yet to be reported; 0: none."""
        self.has_loader = False
        """Whether a training loader was prepared."""
        self.may_warn_of_loader = False
        """Whether this process is the one of several that may warn of a missing loader."""
        self.evaluated: list[EvaluationBatch] = []
        """The batches of evaluations over whose shards loops run, in the order in which the loops
        began."""
        self._sync = sync
        self.peers = peers
        self.trained, self.guards = trained, guards
        self._listeners = listeners
        self._methods = listeners.methods
        self._combines = not sync.is_plain
        """Whether what shards compute is combined. The gradients and buffers of a single shard stay
        where they are."""
        self._has_streams = num_shards > 1
        """Whether each shard has a random stream, after which the step's begins again. With V = 1
        the step's stream simply continues, as in any script: starting a stream costs some 10 µs,
        most of it for ``random`` and ``numpy.random``."""
        self.runs = own_micro_batches
        """The function that gives the micro-batches to run of a batch. An instrument that repeats
        shards sets another one (``loop.dry_runs``)."""
        self.found_wrong = False
        """Whether an instrument has found a result of the run wrong, so that nothing may be saved
        any more."""
        self._mark = mark
        self.own = Sinks(PhaseNumbers(), sync, listeners.methods, mark)
        """The receivers of micro-batches that count."""
        self.sinks = self.own
        """The receivers of the running micro-batch."""
        self._plan: StepPlan | None = None
        """The plan of the current step; None: between steps."""
        self._batch: Batch | None = None
        """The batch that leads the current phase: the first of ``zip(a.shards, b.shards)``; None:
        between phases."""
        self.opened: list[Shards] = []
        """The iterators over shards that the script has requested since the last phase."""
        self._carried: Gradients = {}
        """The gradients from before the phase, to which the phase's gradients are added."""
        self._checked: set[tuple[int, int]] = set()
        """The phases and backward calls whose loss was checked for being a sum."""
        self._has_warned = False
        """Whether the warning of a loss that may be a sum was printed."""
        self._has_refused = False
        """Whether an error was raised already for a call that does not belong in the current
        phase."""
        self._agreed: Agreed | None = None
        """The result of the exchange at the end of the current phase; None: not yet exchanged."""
        self._cut_short: BaseException | None = None
        """The error that interrupted a backward pass of the running micro-batch. It counts only if
        the script catches it and continues."""

    # The step

    @property
    def in_step(self) -> bool:
        """Whether the body of a loop over a prepared loader is running."""
        return self._plan is not None

    @property
    def in_phase(self) -> bool:
        """Whether a loop over ``batch.shards`` is running."""
        return self._batch is not None

    def position(self) -> Position:
        """Returns where this process is now. May be called from another thread."""
        micro = self.micro
        return Position(self.step, self.num_done, None if micro is None else micro.shard)

    @property
    @override
    def is_dry_run(self) -> bool:
        """Whether a shard is being repeated without effect on the run."""
        return self.sinks is not self.own

    def begin_step(self, plan: StepPlan) -> None:
        """Begins a step with the next global batch."""
        self.step += 1
        self._plan = plan
        self.num_done = 0
        self.opened = []
        for notify in self._methods["begin_step"]:
            notify(self.step)
        reseed(self.seed, Purpose.STEP, self.step, 0)

    def end_step(self) -> None:
        """Ends the step, after the loop's body has run.

        Raises:
            UsageError: like ``check_outside``.
        """
        if self._batch is not None:
            self.check_outside("the next step")
        plan, self._plan = self._plan, None
        assert plan is not None
        plan.was_passed_over = self.num_done == 0
        step, num_samples = self.step, plan.num_samples
        for notify in self._methods["end_step"]:
            notify(step, num_samples)

    def leave_step(self, *, failed: bool) -> bool:
        """Leaves the loop's body by ``break`` or an error. Returns whether the step counts: it does
        if a phase was completed and none is open."""
        # All ranks decide alike without a message: a completed phase is one that all have
        # completed.
        if not failed and self._batch is None and self.num_done > 0:
            self.end_step()
            return True
        self._plan = None
        if self._batch is not None:
            if not failed and not self._has_refused:
                self.was_left = self.step
            for shards in self.opened:
                shards.drop()
            self._sync.drop()
            self.guards.gradients.drop()
            # The gradients of a single shard, which nothing combines, are where autograd has left
            # them.
            detach_grads(self.trained.parameters)
            put_back(self._carried)
        self._batch = self.micro = self._cut_short = self._agreed = None
        self._carried = {}
        self._listeners.drop()
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
        if self._batch is None:
            if self.evaluated:
                self.evaluated[-1].refuse_inside(call)
            return
        self._has_refused = True
        micro = self.micro
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
        if self._batch is None and not (self.was_left or self.evaluated):
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
        """Returns to the random stream of this position, after other code has drawn from another
        stream.

        A stream is a sequence of random numbers with its own seed. Inside ``batch.shards`` the
        seed is derived from the run's seed, step, shard, part and phase, and outside from the run's
        seed, step and phase."""
        micro = self.micro
        if micro is not None:
            reseed(self.seed, Purpose.TRAIN, self.step, micro.shard, micro.part, self.num_done)
        elif self._plan is not None:
            reseed(self.seed, Purpose.STEP, self.step, self.num_done)

    @override
    def compare_data(self, description: str) -> None:
        """Checks that all ranks have read the same first samples. Every rank must call it."""
        self.peers.same_data.compare(description)

    @override
    def note_data(self, description: str) -> None:
        """Checks at the end of the next phase, without a further message, that all ranks have read
        the same first samples. Every rank must call it."""
        self.peers.same_data.note(description)

    @override
    def gather(self, mine: list[Shared]) -> list[Shared]:
        """Gathers what the shards of all ranks have shared. Every rank must call it."""
        return self._gather(mine)

    # Phases

    @override
    def begin_phase(self, batch: Batch) -> Batch:
        """Begins a phase on a batch's shards, or joins one that another batch leads. Local."""
        # A second batch while a shard runs: zip(a.shards, b.shards). Its shards are paired with
        # those of the batch that leads, so both must have as many, on the same ranks.
        if self._batch is not None and self._batch is not batch and self.micro is not None:
            first, second = ([min(n, self.num_shards) for n in b.plan.sizes] for b in (self._batch, batch))
            if first != second:
                raise refusals.uneven_side_by_side(first, second)
            if batch.plan.blocks.sizes != self._batch.plan.blocks.sizes:
                raise refusals.moved_side_by_side()
            return self._batch
        if self._batch is not None:
            self.check_outside("another loop over batch.shards")
        if self._plan is None or batch.plan.was_passed_over:
            raise refusals.step_is_over(batch.plan.number)
        self._batch, self._has_refused = batch, False
        self.own = self.sinks = Sinks(PhaseNumbers(), self._sync, self._methods, self._mark)
        trained, guards = self.trained, self.guards
        # A phase begins with empty .grad: autograd then creates each shard's gradient in the same
        # way on every rank, and a sum over shards does not contain what an earlier phase has left
        # there.
        self._carried = detach_grads(trained.parameters)
        if trained.scaling is not None:
            trained.scaling.begin_phase(self._carried)
        if self._combines:
            self._sync.begin_phase(batch.plan, self.num_done)
        if guards.is_strict:
            guards.weights.begin_phase(self.step)
        if guards.unprepared.known:
            guards.unprepared.begin_phase()
        for notify in self._methods["begin_phase"]:
            notify(self.num_done)
        self.own.mark((BEGINNING, perf_counter()))
        return batch

    @override
    def begin_shard(self, micro: MicroBatch, data: Any) -> None:
        """Begins a micro-batch, of which the script is about to receive the samples. With
        ``accumulate``, runs for each of a shard's micro-batches. Local."""
        self.micro = self.guards.gradients.micro = micro
        _, sync, methods, mark = self.sinks
        if self._combines:
            sync.begin_shard(micro)
        for notify in methods["begin_shard"]:
            notify(micro)
        # The stream belongs to step, shard, part and phase. So a micro-batch draws the same numbers
        # on any rank, and after any number of others.
        if self._has_streams:
            self.resume_stream()
        for notify in methods["received"]:
            notify(micro, data)
        mark((IN_FORWARD, perf_counter()))

    @override
    def received(self, micro: MicroBatch, data: Any) -> None:
        """Notifies listeners of samples from another loader than the leading one. Local."""
        for notify in self.sinks.methods["received"]:
            notify(micro, data)

    @override
    def end_shard(self) -> None:
        """Ends the micro-batch. With ``accumulate``, runs for each of a shard's micro-batches.
        Local.

        Raises:
            UsageError: the script caught an error of its backward pass.
        """
        micro = self.micro
        assert micro is not None
        if self._cut_short is not None:
            raise refusals.cut_short(micro, self._cut_short) from self._cut_short
        numbers, sync, methods, mark = self.sinks
        self.guards.gradients.end_shard(numbers.num_calls)
        if self.guards.is_strict:
            self.guards.weights.end_shard(self.step)
        numbers.end_shard(micro)
        if self._combines:
            sync.end_shard()
        for notify in methods["end_shard"]:
            notify()
        self.micro = None
        mark((ENDING, perf_counter()))

    def settle(self) -> None:
        """Exchanges the weights and values of the phase, once the shards of this process have run.
        Every rank must call it; it blocks until all have.

        ``end_phase`` calls it, unless an instrument did before: an audit repeats shards once the
        ranks have exchanged rows, while buffers still have the values with which all shards
        began."""
        batch = self._batch
        assert batch is not None
        if self.guards.is_strict:
            self.guards.weights.check_unchanged(self.step)
        followers = self._followers(batch.plan) if len(self.opened) > 1 else 0
        at = self.step, self.num_done
        self._agreed = exchange(self.own.numbers, self._sync, batch.plan, at, self.peers, followers)

    @override
    def end_phase(self) -> None:
        """Ends the phase: combines this process's shards with the shards of the other ranks. Every
        rank must call it; it blocks until all have."""
        batch = self._batch
        assert batch is not None
        trained, guards, sync = self.trained, self.guards, self._sync
        if self._agreed is None:
            self.settle()
        assert self._agreed is not None
        agreed, self._agreed = self._agreed, None
        # In this order: gradients of one scale are combined, then unscaled, and only then added to
        # those of earlier phases, which are unscaled already.
        if self._combines:
            sync.end_phase(agreed.divisors, agreed.news)
        if trained.scaling is not None:
            trained.scaling.unscale(trained.parameters)
        if self._carried:
            put_back(self._carried)
            self._carried = {}
        if agreed.values:
            batch.note(agreed.values)
        if len(self.opened) > 1:
            self._end_followers(agreed.followers, {name: batch.values[name] for name in agreed.values})
        else:
            self.opened = []
        self._batch = None
        if guards.unprepared.known:
            guards.unprepared.end_phase()
        for notify in self._methods["end_phase"]:
            notify(self.num_done)
        self.num_done += 1
        if self._has_streams:
            self.resume_stream()

    def _followers(self, plan: StepPlan) -> int:
        """Returns the loops that have followed the leading one, a bit for each of ``opened``; 0 if
        every rank has samples. Ranks without samples learn from the others' bits: their
        ``zip(a.shards, b.shards)`` ends before it asks ``b``, as if a loop over ``b`` were still
        to come."""
        if plan.num_active_ranks == len(plan.blocks.by_rank):
            return 0
        return sum(1 << number for number, shards in enumerate(self.opened) if shards.is_follower)

    def _end_followers(self, followers: int, values: Mapping[str, Any]) -> None:
        for number, shards in enumerate(self.opened):
            if shards.is_follower or followers >> number & 1:
                shards.end_following()
                shards.batch.values.update(values)
        self.opened = [shards for shards in self.opened if not shards.is_over]

    # Calls of the script

    def backward(self, loss: Any, weight: float | Tensor | None, reduction: str | None, options: dict[str, Any]) -> None:
        """Checks a shard's loss and runs its backward pass, as ``Team.backward`` describes."""
        if self._cut_short is not None and self.micro is not None:
            raise refusals.cut_short(self.micro, self._cut_short) from self._cut_short
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
        micro = self.micro
        if micro is None:
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
        numbers, sync, methods, mark = self.sinks
        trained, guards, call = self.trained, self.guards, numbers.num_calls
        if reduction is None and weight is None and self.num_shards > 1 and (self.num_done, call) not in self._checked:
            self._checked.add((self.num_done, call))
            if is_sum(loss, micro.num_samples):
                raise refusals.sum_for_a_mean(micro, self.num_shards)
            if micro.shard == 0 and not self._has_warned and may_be_sum(loss, micro.num_samples):
                self._has_warned = True
                warn(refusals.perhaps_sum_for_a_mean(micro, self.num_shards), code="loss-may-be-sum")
        factor = numbers.call(weight, reduction, micro)
        try:
            for notify in methods["before_backward"]:
                notify(loss, weight)
            if self.step >= guards.unprepared.looks.next and not self.is_dry_run:
                guards.unprepared.look(loss, self.step)
            mark((IN_BACKWARD, perf_counter()))
            guards.gradients.before_backward(call)
            try:
                run: Callable[..., None] = sync.backward
                for precision in trained.model_precisions:
                    run = functools.partial(precision.backward, run)
                run(loss if trained.scaling is None else trained.scaling.scale(loss), call, factor, options)
            finally:
                guards.gradients.is_running = False
                if guards.gradients.marked:
                    guards.gradients.put_placeholders()
            mark((IN_SCRIPT, perf_counter()))
            for notify in methods["after_backward"]:
                notify()
        except BaseException as error:  # an interrupt, too: the script may catch any
            self._cut_short = error
            raise

    @override
    def add(self, weight: float | Tensor | None, values: dict[str, Any], reduction: str | None = None) -> None:
        """Records values of the running shard. Local."""
        micro = self.micro
        if micro is None:
            raise UsageError(
                f"batch.add({', '.join(values)}) outside of batch.shards: it records values of the running shard. For a value "
                "that is equal on all ranks use team.log().",
                code="outside-shards",
            )
        self.sinks.numbers.add(weight, values, micro, reduction)

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
        if self._sync.replaced and not self._sync.replaced.keys().isdisjoint(parameters_of(optimizer)):
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
                for notify in self._methods["before_other_optimizer"]:
                    notify(optimizer)
            return
        if self._batch is not None or self.was_left or self.evaluated:
            self.check_outside(_step_of(optimizer))
        if self._plan is None:
            self._check_loader(optimizer)
            return
        if unprepared is not None:
            raise refuse(unprepared.shape, f"{_step_of(optimizer)} in step {self.step}: ")
        if len(args) == 1 and not options and not self.guards.gradients.have_been:
            self.guards.gradients.check_first_step(_step_of(optimizer), self.step)
        for notify in self._methods["before_optimizer"]:
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
