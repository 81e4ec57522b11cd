"""Sums over W ranks in few messages: round by round, each with the ranks that differ in one digit
of their number.

The digits have bases whose product is W. In the first round each group of adjacent ranks sums its
nodes of the tree (``plan.tree``), every rank a slice of them; in the next, ranks of adjacent groups
that have the same slice sum theirs, and so on. So a rank exchanges with ``sum(base - 1)`` others
rather than ``W - 1``, and sends as much as in a ring. For a power of two in base 2 this is
recursive halving (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005). The ranks of a machine come first: only its slices leave it, once.

Three machines of two ranks (bases 2 and 3), one shard a rank, and a tensor in six slices::

    round 1    0 1    2 3    4 5     within each machine: ranks 0, 2 and 4 sum slices 0 to 2 of
                                     their pair, ranks 1, 3 and 5 slices 3 to 5
    round 2    0 2 4     1 3 5       between machines: each rank sums one slice over the three pairs
    way back   0 2 4     1 3 5       the sums, in the opposite order: every rank has three slices,
               0 1    2 3    4 5     then all six

A rank sends to 1 + 2 others instead of 5. It sends 1/2 + 1/3 of the tensor, and as much on the way
back: (W - 1)/W = 5/6, as in a ring. Adjacent ranks come first because blocks are contiguous: the
nodes of a group cover one range of shards, in which siblings add up before the next round.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep._plan.tree import sum_siblings

Roots = Sequence[Sequence[tuple[int, int]]]
"""The type of start and size of each subtree, for each rank."""
# A large base means more messages at a time, in fewer rounds that wait for each other. Up to 8
# ranks need a single round, in which each sends to all others directly.
_LARGEST = 8


@dataclass(frozen=True)
class Round:
    """One round of a rank."""

    members: tuple[int, ...]
    """The ranks that exchange, in ascending order, with this one."""
    roots: Roots
    """The subtrees that each of the members has summed before this round."""
    most_nodes: int
    """The largest number of subtrees that any rank has before this round."""


def bases(world_size: int, ranks_per_machine: int = 1) -> list[int]:
    """Returns the base of each round.

    Args:
        world_size: number of ranks.
        ranks_per_machine: number of consecutive ranks on each machine; divides ``world_size``.
    """
    return [*_group(ranks_per_machine), *_group(world_size // ranks_per_machine)]


def equal_machines(machines: Sequence[str]) -> int:
    """Returns the number of consecutive ranks on each machine, if it is the same on all; otherwise
    1.

    Args:
        machines: the machine of each rank.
    """
    sizes = [len(list(ranks)) for _, ranks in itertools.groupby(machines)]
    return sizes[0] if len(set(sizes)) == 1 else 1


def _group(number: int) -> list[int]:
    """Returns a product of few factors, each of at most ``_LARGEST`` where the number allows.
    Powers of two come first: the subtrees of 4 ranks add up to one, but of 3 ranks to two."""
    found = [1]
    factor = 2
    while number > 1:
        # No smaller factor is left, so the number is prime: a base of its own, however large it is.
        if factor * factor > number:
            factor = number
        if number % factor:
            factor += 1
            continue
        number //= factor
        if found[-1] * factor <= _LARGEST:
            found[-1] *= factor
        else:
            found.append(factor)
    return [base for base in found if base > 1]


def plan_rounds(rank: int, roots: Roots, of_bases: Sequence[int]) -> list[Round]:
    """Returns the rounds of a rank.

    Args:
        rank: the rank.
        roots: the subtrees that each rank has summed from its own shards.
        of_bases: the result of ``bases``.
    """
    # Computed for all ranks, although one is asked for: a receive must know the length of its
    # message, so each rank must know how many nodes its peers have in every round.
    rounds, current, stride = [], [list(own) for own in roots], 1
    for base in of_bases:
        groups = [
            tuple(range(first, first + base * stride, stride)) for first in range(len(roots)) if first // stride % base == 0
        ]
        (members,) = (group for group in groups if rank in group)
        rounds.append(Round(members, [current[member] for member in members], max(map(len, current))))
        merged = {member: _merge([current[member] for member in group]) for group in groups for member in group}
        current, stride = [merged[number] for number in range(len(roots))], base * stride
    return rounds


def _merge(roots: Roots) -> list[tuple[int, int]]:
    nothing = (None for own in roots for _ in own)
    return [(node.start, node.size) for node in sum_siblings(roots, nothing, lambda _left, _right: None)]
