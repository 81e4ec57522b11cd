"""What the ranks have yet to learn about a phase, because no earlier phase of its index had it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class News:
    """What a rank reports to the others at the end of a phase, or what all of them have reported.
    Nearly always there is nothing. Sent as plain values."""

    buckets: Sequence[tuple[int, int]] = ()
    """The buckets with gradients that no rank has started, as backward call and index."""
    slots: Sequence[tuple[int, int]] = ()
    """The started buckets on GPUs in which other parameters had a gradient than in the phase
    before, as backward call and index."""
    modules: Sequence[int] = ()
    """The numbers of the modules whose buffers have changed for the first time."""
    looks: Sequence[str] = ()
    """How shards have changed buffers (``ShardBuffers.looks``)."""
    unit_orders: Sequence[int] = ()
    """A number for the order in which a rank has run the units of ``fsdp``, if it is a new one."""
    has_other_parameters: bool = False
    """Whether other sharded parameters had a gradient than in the phase before."""

    def __bool__(self) -> bool:
        return bool(
            self.buckets or self.slots or self.modules or self.looks or self.unit_orders or self.has_other_parameters
        )

    @classmethod
    def of_all(cls, ranks: Sequence[News]) -> News:
        """Returns what any of the ranks has reported: items in the order of the ranks, each once,
        but one of ``unit_orders`` for each rank that has a new one."""
        if not any(ranks):
            return NOTHING
        return cls(
            buckets=_once(item for news in ranks for item in news.buckets),
            slots=_once(item for news in ranks for item in news.slots),
            modules=_once(item for news in ranks for item in news.modules),
            looks=_once(item for news in ranks for item in news.looks),
            unit_orders=[order for news in ranks for order in news.unit_orders],
            has_other_parameters=any(news.has_other_parameters for news in ranks),
        )


NOTHING = News()


def _once(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))
