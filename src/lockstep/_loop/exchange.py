"""The exchange at the end of a phase: the only place where ranks talk there, but for gradients and
buffers.

Nearly always the ranks can predict the form of what they exchange (``loop.forecast``). Then a
single message of fixed length per rank suffices, its row. A rank whose data has another form (the
script has added a tensor, for example) sets a flag in its row, upon which all ranks exchange their
numbers pickled. A form is predicted for each phase index: the first phase of every step has its
form, the second another.

The row of a rank, in float64, where S is the largest number of micro-batches that a rank has::

    | mark | place | flag | calls |                                4 numbers
    | samples | first batches | clock | other parts                2; 9 with balance, else 6; others
    | weight of call 0, slot 0 .. S-1 | weight of call 1 ...       S for each weighted call
    | value, weight of name 0, slot 0 .. S-1 | name 1 ...          2 S for each name

With one loss on 8 shards and 2 processes (S = 4) that is 4 + 11 + 2 x 4 = 23 numbers, 184 bytes. A
row has a slot for every micro-batch (``MicroBatch.index``), rather than a sum over this rank's
shards, so that the result does not depend on which rank had which shard: rank 0's slots, then rank
1's and so on are the shards in order, since blocks are contiguous. An empty slot has the weight 0
of a backward call, which adds nothing to their sum; that of a value has the weight -1. Python's
floats are float64, so that nothing is rounded on the way; what float64 cannot express (tensors,
integers above 2**53) is never predicted."""

from __future__ import annotations

import functools
import math
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn, Protocol

import torch

from lockstep._base.errors import LossError, MismatchError, PeerError
from lockstep._data.values import Total, combine
from lockstep._loop.forecast import Forecast
from lockstep._loop.numbers import PhaseNumbers, RankNumbers, different_kinds
from lockstep._loop.same_data import SameData
from lockstep._plan.shards import StepPlan
from lockstep._sync.news import NOTHING, News
from lockstep._sync.protocol import PhaseSums
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.short import all_gather_short
from lockstep._world.comm.waiter import has_timed_out
from lockstep._world.machine.sizes import name_ranks

_MOST_PHASES = 1 << 20
"""The most phases of a step, so that step and phase are one float64: exact up to step 2**33."""
_MARK = math.pi
"""The number that a row begins with; none of its bytes is zero. Gloo accepts a message that is too
short: what a rank has sent in another collective overwrites the beginning of its row, and behind it
is what that memory contained before, such as an earlier row."""
_HEAD = 4  # mark, place, flag, calls


@dataclass(slots=True)
class PhaseResult:
    """What the ranks have exchanged at the end of a phase: the same on every rank, and independent
    of their number. (Treated as immutable.)"""

    divisors: Sequence[float | None]
    """For each backward call, the divisor of its sum over all shards; None: not divided."""
    values: Mapping[str, Total]
    """For each name, what the shards have added under it."""
    news: News
    """``PhaseSums.news`` of all ranks."""
    followers: int = 0
    """The loops over second batches (``zip(a.shards, b.shards)``) that belonged to the phase on any
    rank, as bits in the order in which the script opened them."""


class RowPart(Protocol):
    """More numbers in each rank's row, so that they need no separate message: of what was read,
    of clocks and of audits. How many they are may depend only on what is equal on all ranks."""

    def report(self, plan: StepPlan) -> list[float]:
        """Returns the numbers of this rank, which is about to wait for the others, for the phase
        that ends: equally many on every rank."""

    def receive(self, rows: Sequence[Sequence[float]]) -> None:
        """Takes the numbers of all ranks, by rank."""


class Clock(RowPart, Protocol):
    """A measurement of how long this rank was busy, which learns how long the others were."""

    def device_finished(self) -> None:
        """Notes that this rank has waited for its device to compute the values of the phase."""


class Peers:
    """The ranks that exchange their numbers at the end of each phase, for a whole run.

    Args:
        collectives: over all ranks.
        accumulate: global batches per step.
        clock: the source of times that are exchanged, too.
    """

    def __init__(self, collectives: Collectives, accumulate: int, clock: Clock) -> None:
        self.collectives = collectives
        self.accumulate = accumulate
        self.clock = clock
        self.is_alone = collectives.size == 1
        """Whether this rank is the only one."""
        self.same_data = SameData(collectives)
        self.row_parts: list[RowPart] = [self.same_data, clock]
        """The parts of each row, the same on every rank. A single rank exchanges nothing, and does
        not ask them."""
        self.forecasts: defaultdict[int, Forecast] = defaultdict(Forecast)
        """The forecast of each phase index."""


def exchange(
    numbers: PhaseNumbers, sums: PhaseSums, plan: StepPlan, at: tuple[int, int], peers: Peers, followers: int = 0
) -> PhaseResult:
    """Exchanges the numbers of a phase with the other ranks, and what is new in it. Every rank must
    call it; it blocks until all have.

    Args:
        numbers: of this rank.
        sums: of the gradients; they may send the row along.
        plan: of the step.
        at: the number of the step, and the index of the phase in it.
        peers: the other ranks.
        followers: ``PhaseResult.followers`` of this rank.

    Raises:
        DataError: the ranks have read different data: in number, or at the beginning of a pass.
        MismatchError: the ranks are in different phases.
        PeerError: a rank did not arrive within the timeout, or has called another collective.
        UsageError: the ranks' backward calls are of different kinds, or the shards' values of
            different kinds or shapes.
        LossError: the weights of all shards sum to zero.
        ConfigError: a weight that was on a device is negative or infinite.
    """
    # First, because it starts to send what earlier phases had: a device may finish meanwhile.
    news = sums.news()
    if numbers.are_on_device:
        numbers.read_devices()
        peers.clock.device_finished()
    own, (step, phase) = numbers.recorded, at
    if peers.is_alone:
        # NOTHING is seen without a call, in each step of most runs.
        if (news is NOTHING or not news) and not (own.values or own.weights or own.others):
            return PhaseResult([None] * len(own.kinds), {}, news)
        own.news, own.followers = news, followers
        return _result_of([own], own.kinds, step)
    own.news, own.followers = news, followers
    forecast = peers.forecasts[phase]
    ranks = _of_all_ranks(own, forecast, sums, plan, at, peers)
    kinds = max((rank.kinds for rank in ranks), key=len)
    for rank in ranks:
        for call, kind in enumerate(rank.kinds):
            if kind != kinds[call]:
                raise different_kinds(call, {kind, kinds[call]})
    forecast.learn(kinds, ranks)
    return _result_of(ranks, kinds, step)


def _of_all_ranks(
    own: RankNumbers, forecast: Forecast, sums: PhaseSums, plan: StepPlan, at: tuple[int, int], peers: Peers
) -> list[RankNumbers]:
    """Exchanges the numbers of all ranks."""
    step, phase = at
    is_foreseen = forecast.foresees(own)
    weighted = [call for call, kind in enumerate(forecast.kinds) if kind == "weight"]
    slots = range(peers.accumulate * plan.blocks.most)  # the most micro-batches that a rank has
    place = float(step * _MOST_PHASES + phase)
    reports = [part.report(plan) for part in peers.row_parts]
    line = [_MARK, place, 0.0 if is_foreseen else 1.0, float(len(own.kinds))]
    for report in reports:
        line += report
    line += [own.weights.get((call, slot), 0.0) for call in weighted for slot in slots]
    # Sorted: a row has no names in it, so every rank must write and read them in one order.
    for name in sorted(forecast.names):
        line += [number for slot in slots for number in own.values.get((name, slot), (0.0, -1.0))]
    try:
        lines = sums.gather(line) or all_gather_short(torch.tensor(line, dtype=torch.float64)).tolist()
    except RuntimeError as error:
        if not has_timed_out(error):
            raise
        raise PeerError(
            f"timed out in step {step}: another rank did not finish its loop over batch.shards ({error}). It may be stuck "
            "(for example in data loading) or have left the loop. Run `lockstep stacks` during the hang to see where.",
            code="phase-timeout",
        ) from error
    if any(row[0] != _MARK or row[1] != place for row in lines):
        _refuse_places(lines, step)
    first = _HEAD
    for part, report in zip(peers.row_parts, reports, strict=True):
        part.receive([row[first : first + len(report)] for row in lines])
        first += len(report)
    # All ranks see the flags of all, so they agree on whether a second exchange follows.
    if any(row[2] for row in lines):
        return [RankNumbers.received(fields) for fields in peers.collectives.all_gather_plain(asdict(own))]
    return [_read(row, first, forecast, weighted, slots) for row in lines]


def _read(line: list[float], first: int, forecast: Forecast, weighted: list[int], slots: range) -> RankNumbers:
    rank = RankNumbers(kinds=forecast.kinds[: int(line[3])])
    numbers = iter(line[first:])
    for call in weighted:
        for slot in slots:
            rank.weights[call, slot] = next(numbers)
    for name in sorted(forecast.names):
        for slot in slots:
            value, weight = next(numbers), next(numbers)
            if weight >= 0:
                rank.values[name, slot] = (value, weight)
    return rank


def _result_of(ranks: Sequence[RankNumbers], kinds: Sequence[str], step: int) -> PhaseResult:
    # Every rank computes the results by itself from the same numbers, so no result needs a message.
    divisors = [_total_weight(ranks, call, step) if kind == "weight" else None for call, kind in enumerate(kinds)]
    in_order = (item for rank in ranks for item in sorted(rank.entries(), key=operator.itemgetter(1)))
    values = dict(sorted(combine(((name, entry) for name, _, entry in in_order)).items()))
    followers = functools.reduce(operator.or_, (rank.followers for rank in ranks))
    return PhaseResult(divisors, values, News.of_all([rank.news for rank in ranks]), followers)


def _total_weight(ranks: Sequence[RankNumbers], call: int, step: int) -> float:
    # fsum rounds once, after an exact sum, so the total does not depend on the order of the
    # weights.
    total = math.fsum(
        weight for rank in ranks for (call_of_weight, _), weight in rank.weights.items() if call_of_weight == call
    )
    if total == 0:
        raise LossError(
            f"step {step}: the weights of all shards sum to zero, so the gradient is undefined (0/0). Filter such batches out "
            "of the data, or pass a tiny weight: `team.backward(total / max(n, 1), weight=max(n, 1e-6))`.",
            code="zero-weights",
        )
    return total


def _refuse_places(lines: Sequence[Sequence[float]], step: int) -> NoReturn:
    """Raises the error for rows of different phases, or of another collective."""
    foreign = [rank for rank, line in enumerate(lines) if line[0] != _MARK]
    if foreign:
        raise PeerError(
            f"step {step}: received data of another collective from {name_ranks(foreign)}. The script calls a collective of "
            "torch.distributed on some ranks only, or in a different order.",
            code="foreign-collective",
        )
    places = [divmod(int(line[1]), _MOST_PHASES) for line in lines]
    ranks: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        ranks[place].append(rank)
    found = ", and ".join(f"{name_ranks(which)} in loop {n + 1} of step {step}" for (step, n), which in ranks.items())
    raise MismatchError(
        f"the ranks are in different loops over batch.shards: {found}. Every rank must run the same loops in every step. Look "
        "for an `if` or `continue` before such a loop that is true on some ranks only.",
        code="different-phases",
    )
