"""Moving shards from slow processes to processes that wait for them. Results stay bit-identical.

The ranks exchange how long they were busy with the numbers of each phase (``loop.exchange``),
whether shards move or not. So all ranks make the same decision without a message. It applies to
steps that no rank has planned yet: loader workers fetch samples ahead, of the shards that this rank
had when the step was planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from time import perf_counter

from typing_extensions import override

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._data.block_schedule import BlockSchedule
from lockstep._data.loader import PreparedLoader
from lockstep._events.measure.step_clock import StepClock
from lockstep._events.writer import EventWriter
from lockstep._listener import Listener
from lockstep._plan.balance import (
    AHEAD,
    BACKWARD,
    BUSY,
    DATA,
    FORWARD,
    SCRIPT,
    Balancer,
    Row,
    can_balance,
)
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import StepPlan
from lockstep._prepare.per_shard import PerShard
from lockstep._prepare.state_adapters import StateAdapter


def may_balance(config: RunConfig, world_size: int, num_shards: int, device_type: str) -> bool:
    """Whether shards may move in a run with these settings, whose strategy is resolved, on devices
    of this type."""
    # A move leaves blocks that are not aligned, so nearly every process has several subtrees of
    # gradients instead of one: memory that a GPU may not have in the middle of a run, and the more
    # bytes to send. And the GPUs of a run are all of one product.
    is_wanted = device_type == "cpu" if config.balance == "auto" else config.balance == "on"
    return is_wanted and STRATEGIES[config.strategy].balances and can_balance(world_size, num_shards)


class Balance(Listener):
    """The moves of shards, and a ``loop.exchange.Clock`` around the clock of steps.

    Args:
        world_size: number of processes.
        num_shards: V.
        clock: measures this rank.
        events: receives an event for each move.
        registered: the adapters of what the script has registered, among it what its shards carry
            from step to step.
    """

    def __init__(
        self,
        world_size: int,
        num_shards: int,
        clock: StepClock,
        events: EventWriter,
        registered: Callable[[], Iterable[StateAdapter]],
    ) -> None:
        blocks = even_blocks(world_size, num_shards)
        self.moves = BlockSchedule(blocks)
        self._balancer = Balancer(blocks)
        self._clock = clock
        self._events = events
        self._registered = registered
        self._num_loaders = 0
        self.stays = False
        """Whether nothing may move, since the steps of a whole pass are planned where no move is
        known."""
        self._reads_all = False
        """Whether each rank reads the data of all shards, so that getting them takes as long
        whatever its shards are."""
        self._step = self._ended = 0
        """The newest step that began, and the newest that ended."""
        self._since_s = 0.0
        """The time of this rank's last report, or of the beginning of its pass."""
        self._phase_began_s = 0.0
        self._in_pass = self._begins_pass = False
        """Whether a pass is under way, of which steps are planned, and whether it is in its first
        step, which does not count, since loader workers start for it."""
        self._rows: Sequence[Row] = ()
        """The rows of the step's last phase."""

    # Clock

    def device_finished(self) -> None:
        """Passes the event on to the clock of steps."""
        self._clock.device_finished()

    def report(self, plan: StepPlan) -> list[float]:
        """Returns this rank's ``Row``, as ``plan.balance`` has it."""
        row = self._clock.report(plan)
        began_s, self._since_s = self._since_s, perf_counter()
        in_phase_s = self._since_s - self._phase_began_s - self._clock.exposed_s
        computing_s = row[FORWARD] + row[BACKWARD]
        in_shards_s = computing_s + min(row[SCRIPT], max(0.0, in_phase_s - computing_s))
        if not self._reads_all:
            in_shards_s += row[DATA]
        idle_s = self._since_s - began_s - row[BUSY]
        return [*row, in_shards_s, idle_s, float(self.moves.planned_until(self._step))]

    def receive(self, rows: Sequence[Row]) -> None:
        """Takes the rows of all ranks, also for balancing."""
        self._clock.receive(rows)
        self._rows = rows
        if not self._begins_pass:
            self._balancer.add(rows)

    # Topic of `between`: all ranks have computed the same move, so they agree without a number.

    def is_due(self, step: int) -> bool:
        """Whether the newest move begins with the next step."""
        return self.moves.is_pending and step + 1 >= self.moves.first

    def propose(self, step: int) -> list[int] | None:
        """Returns no numbers, if the move is due."""
        return [] if self.is_due(step) else None

    def settle(self, step: int, largest: Sequence[int]) -> None:
        """Puts the move into force. If shards carry values from step to step, every rank must call
        it."""
        self._put_into_force()

    # Listener

    @override
    def made_loader(self, loader: PreparedLoader, number: int) -> None:
        self._num_loaders += 1
        self._reads_all = loader.reads_all
        # Steps of two loaders side by side must have the same blocks, but are not planned together.
        self.stays = loader.plans_in_worker or self._num_loaders > 1

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._since_s, self._in_pass, self._begins_pass = perf_counter(), True, True

    @override
    def begin_step(self, step: int) -> None:
        self._step, self._rows = step, ()

    @override
    def begin_phase(self, phase: int) -> None:
        self._phase_began_s = perf_counter()

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        self._ended = step
        begins_pass, self._begins_pass = self._begins_pass, False
        if not self._rows or begins_pass or self.moves.is_pending or self.stays:
            return
        # Every rank computes the same proposal from the same rows, so no message is needed to agree
        # on it.
        proposal = self._balancer.end_step()
        if proposal is None:
            return
        # The first step that no rank has planned. Steps that were planned keep their blocks: their
        # samples may have been fetched.
        first = 1 + int(max(map(itemgetter(AHEAD), self._rows)))
        before = self.moves.in_force
        self.moves.move(first, proposal.blocks)
        self._events.write("move", step=first, before=before.sizes, shards=proposal.blocks.sizes, gain=proposal.gain)

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._in_pass = False

    @override
    def flush(self) -> None:
        # what was planned of the pass is never taken
        if self.moves.is_pending and not self._in_pass:
            self._put_into_force()

    def _put_into_force(self) -> None:
        """Changes the blocks for the next step, and moves what shards carry from step to step to
        the ranks that have them then."""
        for adapter in self._registered():
            if isinstance(adapter.target, PerShard):
                adapter.target.share()
        self.moves.settle(self._ended)
        self._balancer.restart(self.moves.in_force)
