"""What a rank sends for a sum in rounds, by its plan: a model of ``sync.exchange`` that is checked
against real sends."""

import collections

from lockstep._plan.blocks import block
from lockstep._plan.rounds import bases, plan_rounds
from lockstep._plan.tree import roots
from lockstep._sync.exchange import split


def elements_sent(
    rank: int, world_size: int, num_shards: int, ranks_per_machine: int, length: int
) -> collections.Counter[int]:
    """The elements of a long tensor that a rank sends to each other one."""
    owned = [roots(block(each, world_size, num_shards)) for each in range(world_size)]
    sent: collections.Counter[int] = collections.Counter()
    span = range(length)
    for one in plan_rounds(rank, owned, bases(world_size, ranks_per_machine)):
        parts = split(span, len(one.members))
        mine = one.members.index(rank)
        for peer, part in zip(one.members, parts, strict=True):
            if peer != rank:
                # nodes there, the result back
                sent[peer] += len(one.roots[mine]) * len(part) + len(parts[mine])
        span = parts[mine]
    return sent


def out_of_machine(world_size: int, num_shards: int, ranks_per_machine: int, length: int, host: int = 0) -> int:
    """The elements that leave a host."""
    own = range(host * ranks_per_machine, (host + 1) * ranks_per_machine)
    of_ranks = [elements_sent(rank, world_size, num_shards, ranks_per_machine, length) for rank in own]
    return sum(number for sent in of_ranks for peer, number in sent.items() if peer not in own)
