"""The weights and values of a phase on one rank, as its shards record them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lockstep._base.errors import UsageError
from lockstep._data.values import (
    COUNT,
    Entry,
    Weight,
    check_weight,
    checked,
    entry_of,
    is_float,
    is_on_device,
    on_cpu,
    read,
    take,
)
from lockstep._plan.shards import MicroBatch
from lockstep._sync.news import NOTHING, News
from lockstep._world.arrivals import Arrivals

KINDS = ("samples", "weight", "sum")
"""The factor of a backward call's gradients: the shard's fraction of the samples, a weight given by
the script, or 1."""

Name = tuple[str, str]
"""The name and the kind of a value, as in ``data.values``."""


@dataclass(slots=True)
class RankNumbers:
    """What one rank has recorded in a phase, in the form in which ranks exchange it."""

    kinds: list[str] = field(default_factory=list)
    """One of ``KINDS`` for each backward call."""
    weights: dict[tuple[int, int], float] = field(default_factory=dict)
    """The weights given by the script, by backward call and slot (``MicroBatch.index``)."""
    values: dict[tuple[Name, int], tuple[float, float]] = field(default_factory=dict)
    """The weighted sum of numbers and the sum of their weights, by name and slot."""
    others: list[tuple[str, int, Entry]] = field(default_factory=list)
    """The names, slots and entries of what no float can express: tensors and large integers."""
    news: News = NOTHING
    followers: int = 0
    """The loops over second batches that belonged to the phase on this rank: see
    ``loop.exchange.PhaseResult``."""

    @classmethod
    def received(cls, fields: dict[str, Any]) -> RankNumbers:
        """Returns what was sent as ``asdict``."""
        return cls(**{**fields, "news": News(**fields["news"])})

    @property
    def names(self) -> set[Name]:
        return {name for name, _ in self.values}

    def entries(self) -> list[tuple[str, int, Entry]]:
        """Returns all names, slots and entries."""
        numbers = [
            (name, slot, (kind, int(value) if kind == COUNT else value, weight))
            for ((name, kind), slot), (value, weight) in self.values.items()
        ]
        return numbers + self.others


class PhaseNumbers:
    """Records the backward calls and the values of a phase, and lives as long as it. Local."""

    __slots__ = (
        "_added",
        "_arrivals",
        "_on_device",
        "_weight",
        "_weights_on_device",
        "are_on_device",
        "num_calls",
        "recorded",
    )

    def __init__(self) -> None:
        self.recorded = RankNumbers()
        """What the completed micro-batches have recorded, but for what ``read_devices`` has yet to
        read."""
        self.num_calls = 0
        """The number of backward calls of the micro-batch so far."""
        self._weight: Weight | None = None
        """The weight that the script last gave a backward call of the micro-batch; None: it gave
        none."""
        self._added: list[tuple[str, str, Any, Weight | None]] = []
        """The names, kinds, values and weights of the current micro-batch."""
        self._on_device: list[tuple[str, int, str, Any, Weight]] = []
        """The names, slots, kinds, values and weights of which a value or weight is yet to be read
        from its device."""
        self._arrivals = Arrivals()
        """What is yet to be read, with the streams in which the script has added it."""
        self.are_on_device = False
        """Whether some are yet to be read, by ``read_devices``."""
        self._weights_on_device: dict[tuple[int, int], Tensor] = {}
        """The weights on a device that the script has given, by backward call and slot."""

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
        kinds, call = self.recorded.kinds, self.num_calls
        if call == len(kinds):
            kinds.append(kind)
        elif kinds[call] != kind:
            raise different_kinds(call, {kind, kinds[call]})
        self.num_calls += 1
        if weight is not None:
            self._weight = weight
            if isinstance(weight, Tensor):
                self.are_on_device = True
                self._arrivals.note(weight)
                self._weights_on_device[call, micro.index] = weight
            else:
                self.recorded.weights[call, micro.index] = weight
            return weight
        # The samples of the step are known beforehand, so a fraction can be the factor. Weights are
        # not: their total is known only after the exchange, and divides the sum
        # (``PhaseResult.divisors``).
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
            kind, taken = take(name, value, reduction, lengths)
            self._added.append((name, kind, taken, of_values))
            if is_on_device(taken):
                self._arrivals.note(taken)
        if isinstance(of_values, Tensor):
            self._arrivals.note(of_values)

    def end_shard(self, micro: MicroBatch) -> None:
        """Ends the micro-batch. Only now is its weight known: ``backward`` may have been called
        after ``add``."""
        for name, kind, value, given in self._added:
            weight = self.weight_of(micro) if given is None else given
            if is_on_device(value) or is_on_device(weight):
                self.are_on_device = True
                self._on_device.append((name, micro.index, kind, value, weight))
            else:
                self._note(name, micro.index, entry_of(kind, on_cpu(value), float(weight)))
        if self._added:
            self._added = []
        self.num_calls, self._weight = 0, None

    def read_devices(self) -> None:
        """Notes what is on devices: the only place that waits for them, once for all values and
        weights.

        Raises:
            ConfigError: a weight is negative or infinite.
        """
        self._arrivals.wait()
        weights, added = self._weights_on_device, self._on_device
        numbers = iter(read([*weights.values(), *(item for *_, value, weight in added for item in (value, weight))]))
        self.recorded.weights.update({key: checked(next(numbers), "backward") for key in weights})
        for name, slot, kind, *_ in added:
            self._note(name, slot, entry_of(kind, next(numbers), checked(float(next(numbers)), "batch.add")))
        self._on_device, self._weights_on_device, self.are_on_device = [], {}, False

    def _note(self, name: str, slot: int, entry: Entry) -> None:
        kind, value, weight = entry
        key, recorded = ((name, kind), slot), self.recorded
        # Numbers that one micro-batch adds under a name several times are one number in its slot.
        # If the sum does not fit into a float any more, it moves to the others.
        if is_float(entry):
            earlier, weights = recorded.values.get(key, (0 if kind == COUNT else 0.0, 0.0))
            value, weight = earlier + value, weights + weight
            if is_float((kind, value, weight)):
                recorded.values[key] = value, weight
                return
            recorded.values.pop(key, None)
        recorded.others.append((name, slot, (kind, value, weight)))


def different_kinds(call: int, kinds: set[str]) -> UsageError:
    """Returns the error for a backward call that shards weight differently."""
    return UsageError(
        f"backward call {call + 1} is weighted differently from shard to shard (by {' and by '.join(sorted(kinds))}), so the "
        "gradients cannot be added up. Pass weight= or reduction='sum' in all shards or in none.",
        code="different-weightings",
    )
