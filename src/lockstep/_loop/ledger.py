"""The weights and values of a phase: the shards' weights and the values that the script added. The
ranks exchange them at its end.

Nearly always the ranks can predict the form of this data: as many backward calls as the last time,
of the same kinds, and values of the same names. Then a single message of fixed length per rank
suffices, its row. A rank whose data has another form (the script has added a tensor, for example)
sets a flag in its row, upon which all ranks exchange pickled pages. A form is predicted for each
phase index: the first phase of every step has its form, the second another.

The row of a rank, in float64, where S is the largest number of micro-batches that a rank has::

    | mark | place | flag | calls | samples | first batches |        6 numbers
    | clock | tellers |                                              9 with balance, 6 without
    | weight of call 0, slot 0 .. S-1 | weight of call 1 ...         S for each weighted call
    | value, weight of name 0, slot 0 .. S-1 | name 1 ...            2 S for each name

With one loss on 8 shards and 2 processes (S = 4) that is 6 + 9 + 2 x 4 = 23 numbers, 184 bytes. A
row has a slot for every micro-batch (``MicroBatch.index``), rather than a sum over this rank's
shards, so that the result does not depend on which rank had which shard: rank 0's slots, then rank
1's and so on are the shards in order, since blocks are contiguous. An empty slot has the weight 0
of a backward call, which adds nothing to their sum; that of a value has the weight -1. Python's
floats are float64, so that nothing is rounded on the way; what float64 cannot express (tensors,
integers above 2**53) is never predicted."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from lockstep._base.errors import DataError, LossError, MismatchError, PeerError, UsageError
from lockstep._data.values import (
    COUNT,
    Entry,
    Total,
    Weight,
    all_on_cpu,
    check_weight,
    checked,
    combine,
    entry_of,
    is_float,
    is_on_device,
    on_cpu,
    take,
)
from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._sync.news import NOTHING, News
from lockstep._sync.protocol import Outcome
from lockstep._world.comm.agreement import compare_ranks
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.short import all_gather_short
from lockstep._world.comm.waiter import has_timed_out
from lockstep._world.machine.sizes import name_ranks

KINDS = ("samples", "weight", "sum")
"""The factor of a backward call's gradients: the shard's fraction of the samples, a weight given by
the script, or 1."""

_REMEMBERED = 50
"""The number of phases of one index after which a name that none of them has used is no longer
predicted. A script may have a name for each of a thousand tasks, or for each step, and each takes
room in the message of every rank."""
_MOST_PHASES = 1 << 20
"""The most phases of a step, so that step and phase are one float64: exact up to step 2**33."""
_MARK = math.pi
"""The number that a row begins with; none of its bytes is zero. Gloo accepts a message that is too
short: what a rank has sent in another collective overwrites the beginning of its row, and behind it
is what that memory contained before, such as an earlier row."""
Gather = Callable[[list[float]], list[list[float]] | None]
"""The type of ``Sync.gather``."""
Name = tuple[str, str]
"""The name and the kind of a value, as in ``data.values``."""

_SAME_DATA = (
    "Every rank must read the same data, of which lockstep gives it its shards: do not split a dataset or stream by rank, and "
    "create, split (random_split) and shuffle it after join(), or with a generator of a fixed seed"
)


@dataclass(slots=True)
class _Page:
    """What one rank has recorded in a phase."""

    kinds: list[str] = field(default_factory=list)
    """One of ``KINDS`` for each backward call."""
    weights: dict[tuple[int, int], float] = field(default_factory=dict)
    """The weights given by the script, by backward call and slot."""
    values: dict[tuple[Name, int], tuple[float, float]] = field(default_factory=dict)
    """The weighted sum of numbers and the sum of their weights, by name and slot."""
    others: list[tuple[str, int, Entry]] = field(default_factory=list)
    """The names, slots and entries of what no float can express: tensors and large integers."""
    news: News = NOTHING
    followers: int = 0

    @property
    def names(self) -> set[Name]:
        return {name for name, _ in self.values}

    @classmethod
    def received(cls, fields: dict[str, Any]) -> _Page:
        """Returns the page that was sent as ``asdict``."""
        return cls(**{**fields, "news": News(**fields["news"])})

    def entries(self) -> list[tuple[str, int, Entry]]:
        """Returns all names, slots and entries."""
        numbers = [
            (name, slot, (kind, int(value) if kind == COUNT else value, weight))
            for ((name, kind), slot), (value, weight) in self.values.items()
        ]
        return numbers + self.others


@dataclass
class _Foreseen:
    """The form predicted for phases of one index in their steps. The same on every rank."""

    # The same, although each rank predicts by itself: it learns from the pages of all ranks, which
    # are the same everywhere. A rank with a form of its own would send a row of another length.

    kinds: list[str] = field(default_factory=list)
    """The kinds of the backward calls."""
    names: dict[Name, int] = field(default_factory=dict)
    """The names, each with the value of ``num_phases`` when it was last used."""
    num_phases: int = 0
    """The number of phases of this index so far."""

    def foresees(self, page: _Page) -> bool:
        """Whether a page has this form."""
        # Fewer calls or names than foreseen fit into the row, as empty slots: a rank without
        # samples has none at all.
        has_more = page.news or page.others or page.followers or not page.names <= self.names.keys()
        return not has_more and page.kinds == self.kinds[: len(page.kinds)]

    def learn(self, kinds: list[str], pages: Sequence[_Page]) -> None:
        """Updates the form with what all ranks had. ``kinds``: of the rank that made the most
        backward calls."""
        if len(kinds) >= len(self.kinds) or kinds != self.kinds[: len(kinds)]:
            self.kinds = kinds
        used: set[Name] = set().union(*(page.names for page in pages))
        self.num_phases += 1
        self.names.update(dict.fromkeys(used, self.num_phases))
        if len(self.names) > len(used):
            oldest = self.num_phases - _REMEMBERED
            self.names = {name: last for name, last in self.names.items() if last > oldest}


class Clock(Protocol):
    """A measurement of how long this rank was busy, which learns how long the others were."""

    def device_finished(self) -> None:
        """Notes that this rank has waited for its device to compute the values of the phase."""

    def report(self, num_samples: int) -> list[float]:
        """Returns the measurements of this rank, which is about to wait for the others: equally
        many numbers on every rank. ``num_samples``: its samples in the phase so far."""

    def receive(self, rows: Sequence[Sequence[float]]) -> None:
        """Takes the measurements of all ranks, by rank."""


class Teller(Protocol):
    """A source of more numbers for the rows of a phase, so that they need no separate message:
    the divergence check and audits compare checksums in this way. How many numbers a teller adds
    may depend only on what is equal on all ranks."""

    def tell(self) -> list[float]:
        """Returns the numbers of this rank for the phase that ends: equally many on every rank."""

    def hear(self, rows: Sequence[Sequence[float]]) -> None:
        """Takes the numbers of all ranks, by rank."""


class Ledger:
    """The weights and values of the current phase, and their exchange at its end.

    Args:
        collectives: over all ranks.
        accumulate: global batches per step.
        clock: the source of times that are exchanged with the weights and values.
    """

    def __init__(self, collectives: Collectives, accumulate: int, clock: Clock) -> None:
        self._weight: Weight | None = None
        """The weight that the script last gave a backward call of the micro-batch; None: it gave
        none."""
        self.num_calls = 0
        """The number of backward calls of the micro-batch so far."""
        self._collectives = collectives
        self._is_alone = collectives.size == 1
        self._clock = clock
        self.tellers: list[Teller] = []
        """The tellers, the same on every rank. A single rank exchanges nothing, and does not ask
        them."""
        self._accumulate = accumulate
        self._foreseen: defaultdict[int, _Foreseen] = defaultdict(_Foreseen)
        """The form predicted for each phase index."""
        self._page = _Page()
        self._added: list[tuple[str, str, Any, Weight | None]] = []
        """The names, kinds, values and weights of the current micro-batch."""
        self._on_device: list[tuple[str, int, str, Any, Weight]] = []
        """The names, slots, kinds, values and weights of which a value or weight is yet to be read
        from its device."""
        self._given: dict[tuple[int, int], Tensor] = {}
        """The weights on a device that the script has given, by backward call and slot."""
        self._first_data: list[str] = []
        """The descriptions of first batches that the ranks compare with the next exchange."""

    def blank(self) -> Ledger:
        """Returns a ledger for micro-batches that do not count: nothing of it is ever exchanged."""
        return Ledger(self._collectives, self._accumulate, self._clock)

    def compare_data(self, description: str) -> None:
        """Compares descriptions of the first samples that each rank has read. Every rank must call
        it.

        Raises:
            MismatchError: the descriptions differ.
        """
        remedy = f"{_SAME_DATA}. A sample must depend only on its index and on random numbers, not on the time or the rank"
        compare_ranks("data", [description], self._collectives, remedy)

    def note_data(self, description: str) -> None:
        """Adds a description of the first samples of a pass to the next exchange, which compares
        them without a further message. Every rank must call it."""
        self._first_data.append(description)

    def drop(self) -> None:
        """Discards the phase's weights and values after the script has left the shard loop
        early."""
        # What was foreseen stays: all ranks learn only from exchanges, and this phase had none.
        self._page, self._added, self._on_device, self._given = _Page(), [], [], {}
        self.num_calls, self._weight = 0, None

    def weight_of(self, micro: MicroBatch) -> Weight:
        """Returns the current micro-batch's weight so far: the one that the script last gave a
        backward call, or the number of samples if it gave none."""
        return float(micro.num_samples) if self._weight is None else self._weight

    def call(self, weight: Weight | None, reduction: str | None, micro: MicroBatch) -> Weight:
        """Records a backward call and returns the factor for its gradients.

        Raises:
            UsageError: the same call of an earlier shard was of another kind.
        """
        kind = "weight" if weight is not None else ("sum" if reduction == "sum" else "samples")
        kinds, call = self._page.kinds, self.num_calls
        if call == len(kinds):
            kinds.append(kind)
        elif kinds[call] != kind:
            _refuse_kinds(call, {kind, kinds[call]})
        self.num_calls += 1
        if weight is not None:
            self._weight = weight
            if isinstance(weight, Tensor):
                self._given[call, micro.index] = weight
            else:
                self._page.weights[call, micro.index] = weight
            return weight
        # The samples of the step are known beforehand, so a fraction can be the factor. Weights are
        # not: their total is known only after the exchange, and divides the sum
        # (``Outcome.totals``).
        return micro.fraction if kind == "samples" else 1.0

    def add(
        self, weight: float | Tensor | None, values: dict[str, Any], micro: MicroBatch, reduction: str | None = None
    ) -> None:
        """Records values of the current micro-batch.

        Raises:
            ConfigError: a value is neither a number nor a tensor of one value per sample, and no
                ``reduction`` defines what it is.
        """
        of_values = check_weight(weight, reduction, "batch.add")
        # Samples before weights, since a length is compared with them in this order: a weight may
        # be on a device, and is waited for only if the number of samples does not fit.
        lengths = (micro.num_samples, self.weight_of(micro), of_values)
        for name, value in values.items():
            self._added.append((name, *take(name, value, reduction, lengths), of_values))

    def end_shard(self, micro: MicroBatch) -> None:
        """Ends the micro-batch. Only now is its weight known: ``backward`` may have been called
        after ``add``."""
        for name, kind, value, given in self._added:
            weight = self.weight_of(micro) if given is None else given
            if is_on_device(value) or is_on_device(weight):
                self._on_device.append((name, micro.index, kind, value, weight))
            else:
                self._note(name, micro.index, entry_of(kind, on_cpu(value), float(weight)))
        self._added, self.num_calls, self._weight = [], 0, None

    def _wait_for_devices(self) -> None:
        """Notes what is on devices: the only place that waits for them, once for all values and
        weights."""
        entries: list[Any] = [
            item for *_, value, weight in self._on_device for item in (value, weight) if is_on_device(item)
        ]
        numbers = iter(all_on_cpu([*self._given.values(), *entries]))
        self._page.weights.update({key: checked(next(numbers), "backward") for key in self._given})
        for name, slot, kind, value, weight in self._on_device:
            number = next(numbers) if is_on_device(value) else on_cpu(value)
            of_value = checked(next(numbers), "batch.add") if is_on_device(weight) else float(weight)
            self._note(name, slot, entry_of(kind, number, of_value))
        self._on_device, self._given = [], {}
        self._clock.device_finished()

    def _note(self, name: str, slot: int, entry: Entry) -> None:
        kind, value, weight = entry
        key = (name, kind), slot
        # Numbers that one micro-batch adds under a name several times are one number in its slot.
        # If the sum does not fit into a float any more, it moves to the pages.
        if is_float(entry):
            earlier, weights = self._page.values.get(key, (0 if kind == COUNT else 0.0, 0.0))
            value, weight = earlier + value, weights + weight
            if is_float((kind, value, weight)):
                self._page.values[key] = value, weight
                return
            self._page.values.pop(key, None)
        self._page.others.append((name, slot, (kind, value, weight)))

    def settle(
        self, plan: StepPlan, phase: int, news: News, gather: Gather, step: int, followers: int = 0
    ) -> tuple[Outcome, dict[str, Total]]:
        """Exchanges the weights and values of the phase with the other ranks. Every rank must call
        it; it blocks until all have.

        Args:
            plan: the plan of the step.
            phase: the index of the phase in the step.
            news: of this rank, for the other ranks.
            gather: ``Sync.gather``, which may send the row along with the gradients.
            step: the step number, for messages.
            followers: ``Outcome.followers`` of this rank, for the other ranks.

        Returns:
            The outcome of the backward calls, and for each name what the shards have added under
            it: both independent of the number of processes.

        Raises:
            DataError: the ranks have read different data: in number, or at the beginning of a pass.
            PeerError: a rank did not arrive within the timeout.
            UsageError: the ranks' backward calls are of different kinds, or the shards' values of
                different kinds or shapes.
            LossError: the weights of all shards sum to zero.
            ConfigError: a weight that was on a device is negative or infinite.
        """
        if self._on_device or self._given:
            self._wait_for_devices()
        page = self._page
        if self._is_alone and not (page.values or page.weights or page.others or news):
            num_calls = len(page.kinds)
            page.kinds.clear()
            return Outcome([None] * num_calls), {}
        self._page = _Page()
        page.news, page.followers = news, followers
        pages = [page] if self._is_alone else self._exchange(plan, page, (step, phase), gather)
        kinds = max((peer.kinds for peer in pages), key=len)
        for peer in pages:
            for call, kind in enumerate(peer.kinds):
                if kind != kinds[call]:
                    _refuse_kinds(call, {kind, kinds[call]})
        if not self._is_alone:
            self._foreseen[phase].learn(kinds, pages)
        # Every rank computes the results by itself from the same pages, so no result needs a
        # message.
        totals = [_total(pages, call, step) if kind == "weight" else None for call, kind in enumerate(kinds)]
        in_order = (item for peer in pages for item in sorted(peer.entries(), key=operator.itemgetter(1)))
        values = dict(sorted(combine(((name, entry) for name, _, entry in in_order)).items()))
        news = News.of_all([peer.news for peer in pages])
        return Outcome(totals, news, functools.reduce(operator.or_, (peer.followers for peer in pages))), values

    def _exchange(self, plan: StepPlan, page: _Page, at: tuple[int, int], gather: Gather) -> list[_Page]:
        """Exchanges the pages of all ranks. ``at``: the step, and the phase's index in it."""
        step, phase = at
        form = self._foreseen[phase]
        is_foreseen = form.foresees(page)
        weighted = [call for call, kind in enumerate(form.kinds) if kind == "weight"]
        slots = range(self._accumulate * plan.blocks.most)  # the most micro-batches that a rank has
        busy = self._clock.report(sum(micro.num_samples for micro in plan.micro_batches))
        told = [teller.tell() for teller in self.tellers]
        place = float(step * _MOST_PHASES + phase)
        line = [_MARK, place, 0.0 if is_foreseen else 1.0, float(len(page.kinds)), float(plan.num_samples)]
        line += [self._data_checksum(), *busy, *itertools.chain(*told)]
        line += [page.weights.get((call, slot), 0.0) for call in weighted for slot in slots]
        # Sorted: a row has no names in it, so every rank must write and read them in one order.
        for name in sorted(form.names):
            line += [number for slot in slots for number in page.values.get((name, slot), (0.0, -1.0))]
        try:
            lines = gather(line) or all_gather_short(torch.tensor(line, dtype=torch.float64)).tolist()
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
        first = 6 + len(busy)
        self._clock.receive([row[6:first] for row in lines])
        for teller, numbers in zip(self.tellers, told, strict=True):
            teller.hear([row[first : first + len(numbers)] for row in lines])
            first += len(numbers)
        samples = [int(row[4]) for row in lines]
        if len(set(samples)) > 1:
            raise DataError(
                f"step {step}: the ranks have global batches of different sizes: {', '.join(map(str, samples))} samples on "
                f"ranks 0 to {len(samples) - 1}, so samples would be lost or used twice. {_SAME_DATA}.",
                code="different-batch-sizes",
            )
        if len({row[5] for row in lines}) > 1:
            self._refuse_first_data()
        self._first_data = []
        # All ranks see the flags of all, so they agree on whether a second exchange follows.
        if any(row[2] for row in lines):
            return [_Page.received(fields) for fields in self._collectives.all_gather_plain(asdict(page))]
        return [self._read(row, first, form, weighted, slots) for row in lines]

    def _data_checksum(self) -> float:
        """Returns a number that is the same on all ranks if they have begun their passes with the
        same batches."""
        return float(zlib.crc32("\n".join(self._first_data).encode())) if self._first_data else 0.0

    def _refuse_first_data(self) -> NoReturn:
        """Raises the error for passes that have begun with different batches. Every rank must call
        it."""
        mine = "; ".join(self._first_data) or "no new pass"
        everyone = self._collectives.all_gather_plain(mine)
        ranks: defaultdict[str, list[int]] = defaultdict(list)
        for rank, description in enumerate(everyone):
            ranks[description].append(rank)
        found = ", but ".join(f"{description} on {name_ranks(which)}" for description, which in ranks.items())
        raise DataError(
            f"the ranks began a pass with different batches: {found}, so samples would be lost or used twice. {_SAME_DATA}. A "
            "sampler may keep state only in its generators and attributes.",
            code="different-first-batches",
        )

    def _read(self, line: list[float], first: int, form: _Foreseen, weighted: list[int], slots: range) -> _Page:
        page = _Page(kinds=form.kinds[: int(line[3])])
        numbers = iter(line[first:])
        for call in weighted:
            for slot in slots:
                page.weights[call, slot] = next(numbers)
        for name in sorted(form.names):
            for slot in slots:
                value, weight = next(numbers), next(numbers)
                if weight >= 0:
                    page.values[name, slot] = (value, weight)
        return page


def _total(pages: list[_Page], call: int, step: int) -> float:
    # fsum rounds once, after an exact sum, so the total does not depend on the order of the
    # weights.
    total = math.fsum(
        weight for page in pages for (call_of_weight, _), weight in page.weights.items() if call_of_weight == call
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


def _refuse_kinds(call: int, kinds: set[str]) -> None:
    raise UsageError(
        f"backward call {call + 1} is weighted differently from shard to shard (by {' and by '.join(sorted(kinds))}), so the "
        "gradients cannot be added up. Pass weight= or reduction='sum' in all shards or in none.",
        code="different-weightings",
    )
