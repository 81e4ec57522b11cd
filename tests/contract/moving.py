"""Shards that move between processes all the time, so that whatever depends on where they are
shows."""

import contextlib
import random

from lockstep._plan.balance import Balancer, Proposal
from lockstep._plan.blocks import blocks_of


@contextlib.contextmanager
def moving_shards():
    """In runs of this process, shards move as soon as they may, to blocks that are drawn at random:
    on all ranks the same."""
    plain = Balancer.end_step

    def propose(balancer):
        sizes = balancer._blocks.sizes
        balancer.num_drawn = getattr(balancer, "num_drawn", 0) + 1
        dice = random.Random(repr((balancer.num_drawn, sizes)))  # not the script's generator
        cuts = sorted(dice.sample(range(1, sum(sizes)), len(sizes) - 1))
        drawn = tuple(b - a for a, b in zip([0, *cuts], [*cuts, sum(sizes)], strict=True))
        return Proposal(blocks=blocks_of(drawn), gain=0.5)

    Balancer.end_step = propose
    try:
        yield
    finally:
        Balancer.end_step = plain


def while_shards_move(task):
    """A task's result while shards move."""
    with moving_shards():
        return task()
