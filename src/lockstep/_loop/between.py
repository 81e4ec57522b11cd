"""What the ranks agree on between two steps: whether their states are still equal, whether a
checkpoint is due, whether they have logged the same values.

::

    each topic    is something due? (the same on every rank, so either all enter, or none does)
                  its numbers on this rank: digests, flags, estimates
    all ranks     one all-reduce of the numbers of all topics, by maximum
    each topic    the largest of each number: the same decision on every rank

A maximum is enough for all of them. Of flags it is "on any rank". Of a digest and its negative it
gives both ends of the range, which are equal if the digest is the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

import torch

from lockstep._events.measure.step_clock import AGREEING, IN_LOGGING, Mark
from lockstep._world.comm.collectives import Collectives


class Topic(Protocol):
    """Something that the ranks agree on. What it answers, and how many numbers it proposes, may
    depend only on what is equal on all ranks (on one process: on anything)."""

    def is_due(self, step: int) -> bool:
        """Whether the ranks must agree after this step. Local."""

    def propose(self, step: int) -> Sequence[int] | None:
        """Returns this rank's numbers of 64 bits, also if it was another topic that was due; None:
        there is nothing to agree on now. It may communicate, since every rank gets here."""

    def settle(self, step: int, largest: Sequence[int]) -> None:
        """Takes the largest of each number over all ranks. It may communicate further."""


class Agreement:
    """The topics of a run, in the order in which they are settled: an early one may refuse a
    step before a later one records it.

    Args:
        collectives: over all ranks.
        topics: the same on every rank.
        mark: notes the time at which an activity begins.
    """

    def __init__(self, collectives: Collectives, topics: Sequence[Topic], mark: Mark) -> None:
        self._collectives = collectives
        self._topics = topics
        self._mark = mark

    def agree(self, step: int) -> None:
        """Agrees after this step on what is due. Every rank must call it."""
        for topic in self._topics:
            if topic.is_due(step):
                break
        else:
            return
        proposals = [(topic, own) for topic in self._topics if (own := topic.propose(step)) is not None]
        numbers = [number for _, own in proposals for number in own]
        if numbers and self._collectives.size > 1:
            self._mark((AGREEING, perf_counter()))
            numbers = self._collectives.all_reduce(torch.tensor(numbers, dtype=torch.int64), "max").tolist()
            self._mark((IN_LOGGING, perf_counter()))
        for topic, own in proposals:
            topic.settle(step, numbers[: len(own)])
            del numbers[: len(own)]
