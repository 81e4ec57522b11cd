"""``Phase``: one loop over the shards of a batch, from its first shard to the combined gradients.

What belongs to a phase is in this object, which ends in one of two ways: ``end``, when all shards
of all ranks have run, or ``abandon``, when the script has left the loop before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any

from torch import Tensor

from lockstep._data.batch import Batch
from lockstep._data.streams import Purpose, reseed
from lockstep._events.measure.step_clock import BEGINNING, ENDING, IN_BACKWARD, IN_FORWARD, IN_SCRIPT, Mark
from lockstep._listener import Calls
from lockstep._loop import refusals
from lockstep._loop.exchange import Peers, PhaseResult, exchange
from lockstep._loop.numbers import PhaseNumbers
from lockstep._plan.shards import MicroBatch
from lockstep._prepare.guards import ShardGuards
from lockstep._prepare.trained import TrainedObjects
from lockstep._sync.gradients import Gradients, detach_grads, put_back
from lockstep._sync.protocol import PhaseSums, Strategy
from lockstep._sync.single import PlainSums

_NONE = PlainSums()
"""The sums of a phase that has not begun."""
_TRAIN = Purpose.TRAIN  # looked up once: see _STEP in phases.py


class RunParts:
    """What all phases of a run use.

    Args:
        seed: the root of the run's random streams.
        num_shards: V.
        strategy: synchronizes gradients and buffers.
        peers: the ranks with which each phase exchanges its weights and values.
        trained: what was prepared so far.
        guards: of what is trained.
        on: the calls of listeners.
        mark: notes the time at which an activity begins.
    """

    def __init__(
        self,
        seed: int,
        num_shards: int,
        strategy: Strategy,
        peers: Peers,
        trained: TrainedObjects,
        guards: ShardGuards,
        on: Calls,
        mark: Mark,
    ) -> None:
        self.seed, self.num_shards = seed, num_shards
        self.strategy, self.peers = strategy, peers
        self.trained, self.guards = trained, guards
        self.on, self.mark = on, mark
        self.has_streams = num_shards > 1
        """Whether each shard has a random stream, after which the step's begins again. With V = 1
        the step's stream simply continues, as in any script: starting a stream costs some 10 µs,
        most of it for ``random`` and ``numpy.random``."""


class Phase:
    """A phase of a step on this rank.

    Args:
        run: the parts of the run.
        step: the number of the step.
        number: of the phase in its step, from 0.
        batch: leads the phase: the first of ``zip(a.shards, b.shards)``.
        sums: of what the shards compute, for a dry run, which does not ``begin``. None: ``begin``
            lets the run's strategy open its sums.
        on: the calls of listeners; None: the run's.
        mark: notes times; None: the run's.
        is_dry_run: whether the phase has no effect on the run.
    """

    __slots__ = (
        "_earlier_grads",
        "_mark",
        "_on",
        "_result",
        "_run",
        "_sums",
        "batch",
        "cut_short",
        "has_refused",
        "is_dry_run",
        "micro",
        "number",
        "numbers",
        "step",
    )

    def __init__(
        self,
        run: RunParts,
        step: int,
        number: int,
        batch: Batch,
        sums: PhaseSums | None = None,
        on: Calls | None = None,
        mark: Mark | None = None,
        *,
        is_dry_run: bool = False,
    ) -> None:
        self._run, self.step, self.number, self.batch = run, step, number, batch
        self._sums: PhaseSums = sums or _NONE
        self._on, self._mark = on or run.on, mark or run.mark
        self.is_dry_run = is_dry_run
        self.micro: MicroBatch | None = None
        """The running micro-batch; None: between two."""
        self.numbers = PhaseNumbers()
        self.has_refused = False
        """Whether an error was raised already for a call that does not belong in the phase."""
        self.cut_short: BaseException | None = None
        """The error that interrupted a backward pass of the running micro-batch. It counts only if
        the script catches it and continues."""
        self._earlier_grads: Gradients = {}
        """The gradients from before the phase, to which the phase's gradients are added."""
        self._result: PhaseResult | None = None
        """The result of the exchange at the end of the phase; None: not yet exchanged."""

    def begin(self) -> None:
        """Begins the phase. Local."""
        run, trained, guards = self._run, self._run.trained, self._run.guards
        # A phase begins with empty .grad: autograd then creates each shard's gradient in the same
        # way on every rank, and a sum over shards does not contain what an earlier phase has left
        # there.
        self._earlier_grads = detach_grads(trained.parameters)
        if trained.scaling is not None:
            trained.scaling.begin_phase(self._earlier_grads)
        self._sums = run.strategy.open(self.batch.plan, self.number)
        if guards.is_strict:
            guards.weights.begin_phase(self.step)
        if guards.unprepared.known:
            guards.unprepared.begin_phase()
        for notify in self._on.begin_phase:
            notify(self.number)
        self._mark((BEGINNING, perf_counter()))

    # A micro-batch

    def begin_shard(self, micro: MicroBatch, data: Any) -> None:
        """Begins a micro-batch, of which the script is about to receive the samples. With
        ``accumulate``, runs for each of a shard's micro-batches. Local."""
        run = self._run
        self.micro = run.guards.gradients.micro = micro
        self._sums.begin_shard(micro)
        for notify in self._on.begin_shard:
            notify(micro)
        # The stream belongs to step, shard, part and phase. So a micro-batch draws the same numbers
        # on any rank, and after any number of others.
        if run.has_streams:
            reseed(run.seed, _TRAIN, self.step, micro.shard, micro.part, self.number)
        for receive in self._on.received:
            receive(micro, data)
        self._mark((IN_FORWARD, perf_counter()))

    def received(self, micro: MicroBatch, data: Any) -> None:
        """Notifies listeners of samples from another loader than the leading one. Local."""
        for notify in self._on.received:
            notify(micro, data)

    def backward(self, loss: Tensor, weight: float | Tensor | None, reduction: str | None, options: dict[str, Any]) -> None:
        """Runs a backward pass of the running micro-batch, whose arguments are valid."""
        run, numbers, micro = self._run, self.numbers, self.micro
        assert micro is not None
        trained, guards, call = run.trained, run.guards, numbers.num_calls
        factor = numbers.call(weight, reduction, micro)
        try:
            for notify in self._on.before_backward:
                notify(loss, weight)
            if self.step >= guards.unprepared.looks.next and not self.is_dry_run:
                guards.unprepared.look(loss, self.step)
            self._mark((IN_BACKWARD, perf_counter()))
            guards.gradients.before_backward(call)
            try:
                backward: Callable[..., None] = self._sums.backward
                for precision in trained.model_precisions:
                    backward = functools.partial(precision.backward, backward)
                backward(loss if trained.scaling is None else trained.scaling.scale(loss), call, factor, options)
            finally:
                guards.gradients.is_running = False
                if guards.gradients.marked:
                    guards.gradients.put_placeholders()
            self._mark((IN_SCRIPT, perf_counter()))
            for notify_after in self._on.after_backward:
                notify_after()
        except BaseException as error:  # an interrupt, too: the script may catch any
            self.cut_short = error
            raise

    def end_shard(self) -> None:
        """Ends the micro-batch. With ``accumulate``, runs for each of a shard's micro-batches.
        Local.

        Raises:
            UsageError: the script caught an error of its backward pass.
        """
        run, numbers, micro = self._run, self.numbers, self.micro
        assert micro is not None
        if self.cut_short is not None:
            raise refusals.cut_short(micro, self.cut_short) from self.cut_short
        run.guards.gradients.end_shard(numbers.num_calls)
        if run.guards.is_strict:
            run.guards.weights.end_shard(self.step)
        numbers.end_shard(micro)
        self._sums.end_shard()
        for notify in self._on.end_shard:
            notify()
        self.micro = None
        self._mark((ENDING, perf_counter()))

    # The end

    def exchange(self, followers: int) -> PhaseResult:
        """Exchanges the weights and values of the phase, once the shards of this process have run.
        Every rank must call it; it blocks until all have. Once: later calls return the same.

        ``end`` calls it, unless an instrument did before: an audit repeats shards once the ranks
        have exchanged rows, while buffers still have the values with which all shards began.

        Args:
            followers: ``PhaseResult.followers`` of this rank.
        """
        if self._result is None:
            run = self._run
            if run.guards.is_strict:
                run.guards.weights.check_unchanged(self.step)
            at = self.step, self.number
            self._result = exchange(self.numbers, self._sums, self.batch.plan, at, run.peers, followers)
        return self._result

    def end(self, followers: int) -> PhaseResult:
        """Ends the phase: combines this process's shards with the shards of the other ranks. Every
        rank must call it; it blocks until all have. ``followers``: as for ``exchange``."""
        trained, guards = self._run.trained, self._run.guards
        agreed = self.exchange(followers)
        # In this order: gradients of one scale are combined, then unscaled, and only then added to
        # those of earlier phases, which are unscaled already.
        self._sums.finish(agreed.divisors, agreed.news)
        if trained.scaling is not None:
            trained.scaling.unscale(trained.parameters)
        if self._earlier_grads:
            put_back(self._earlier_grads)
        if agreed.values:
            self.batch.note(agreed.values)
        if guards.unprepared.known:
            guards.unprepared.end_phase()
        return agreed

    def abandon(self) -> None:
        """Discards the phase, after the script has left its loop. Local."""
        run = self._run
        self.micro = None
        self._sums.abandon()
        run.guards.gradients.drop()
        if run.guards.unprepared.known:
            run.guards.unprepared.end_phase()
        # The gradients of a single shard, which nothing combines, are where autograd has left them.
        detach_grads(run.trained.parameters)
        put_back(self._earlier_grads)
