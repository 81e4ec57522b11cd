"""Promises of the plan of who computes how many shards: valid, fair, and not moved by noise. Pure."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.plan.balance import LEAST_GAIN, Balancer, Pace, best_blocks, can_balance, fair_sizes
from lockstep.plan.blocks import blocks_of, even_blocks

pytestmark = pytest.mark.timeout(60)
quick = settings(deadline=None, max_examples=60)

seconds = st.floats(0, 100)
paces = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        st.integers(size, 8 * size),
        st.lists(seconds, min_size=size, max_size=size),
        st.lists(seconds, min_size=size, max_size=size),
        seconds,
    )
)


def pace_of(shard_s, once_s=None, exchange_s=0.0, num_roots=1):
    once_s = [0.0] * len(shard_s) if once_s is None else once_s
    return Pace(shard_s=shard_s, once_s=once_s, exchange_s=exchange_s, num_roots=num_roots)


@quick
@given(paces)
def test_any_times_give_blocks_of_all_shards_in_rank_order_and_at_least_one_each(times):
    num_shards, shard_s, once_s, exchange_s = times
    blocks = best_blocks(num_shards, pace_of(shard_s, once_s, exchange_s))
    assert blocks.world_size == len(shard_s)
    assert [shard for owned in blocks.by_rank for shard in owned] == list(range(num_shards))
    assert min(blocks.sizes) >= 1
    assert [blocks.owner(shard) for owned in blocks.by_rank for shard in owned] == [
        rank for rank, size in enumerate(blocks.sizes) for _ in range(size)
    ]


@quick
@given(paces)
def test_nobody_could_give_a_shard_to_another_and_all_be_ready_earlier(times):
    num_shards, shard_s, once_s, _ = times
    sizes = fair_sizes(num_shards, shard_s, once_s)
    ready = [once + size * each for once, size, each in zip(once_s, sizes, shard_s, strict=True)]
    last = ready.index(max(ready))
    if sizes[last] > 1:
        then = min(ready[rank] + shard_s[rank] for rank in range(len(sizes)) if rank != last) if len(sizes) > 1 else ready[0]
        assert then >= ready[last] * (1 - 1e-6)


@quick
@given(paces)
def test_a_rank_that_is_slower_in_everything_has_no_more_shards_but_for_one(times):
    num_shards, shard_s, once_s, _ = times
    sizes = fair_sizes(num_shards, shard_s, once_s)
    for one in range(len(sizes)):
        for other in range(len(sizes)):
            if shard_s[one] >= shard_s[other] and once_s[one] >= once_s[other]:
                assert sizes[one] <= sizes[other] + 1


@quick
@given(paces)
def test_the_blocks_are_never_predicted_to_be_worse_than_even_ones(times):
    num_shards, shard_s, once_s, exchange_s = times
    pace = pace_of(shard_s, once_s, exchange_s)
    even = even_blocks(len(shard_s), num_shards)
    assert pace.predicted_s(best_blocks(num_shards, pace)) <= pace.predicted_s(even)


def test_a_rank_at_half_speed_gets_about_half():
    assert best_blocks(16, pace_of([1.0, 2.0])).sizes == (11, 5)
    assert best_blocks(16, pace_of([2.0, 1.0, 1.0])).sizes in ((3, 6, 7), (3, 7, 6))


def test_what_ranks_do_once_a_step_counts():
    assert best_blocks(8, pace_of([1.0, 1.0], once_s=[4.0, 0.0])).sizes == (2, 6)


def test_where_exchanging_takes_longest_blocks_stay_aligned():
    assert best_blocks(16, pace_of([1.0, 2.0], exchange_s=0.0)).sizes == (11, 5)
    assert best_blocks(16, pace_of([1.0, 2.0], exchange_s=100.0)).most_roots == 1


@pytest.mark.parametrize(("world_size", "num_shards", "can"), [(1, 8, False), (2, 3, False), (2, 4, True), (3, 5, False)])
def test_there_must_be_two_shards_a_process(world_size, num_shards, can):
    assert can_balance(world_size, num_shards) == can


class Cluster:
    """Ranks that take so long for a shard, and a Balancer that moves shards between them."""

    def __init__(self, shard_s, num_shards, once_s=0.01):
        self.shard_s, self.once_s = list(shard_s), once_s
        self.blocks = even_blocks(len(shard_s), num_shards)
        self.balancer = Balancer(self.blocks)
        self.moves = []

    def run(self, num_steps, noise=lambda rank, step: 1.0):
        for step in range(num_steps):
            busy = [
                size * each * noise(rank, step)
                for rank, (size, each) in enumerate(zip(self.blocks.sizes, self.shard_s, strict=True))
            ]
            elapsed = max(busy) + 2 * self.once_s
            self.balancer.add(
                [
                    [
                        4.0 * size,
                        0.0,
                        seconds / 2,
                        seconds / 2,
                        self.once_s,
                        seconds + self.once_s,
                        0.0,
                        elapsed,
                        float(step),
                    ]
                    for size, seconds in zip(self.blocks.sizes, busy, strict=True)
                ]
            )
            proposal = self.balancer.end_step()
            if proposal is not None:
                assert proposal.gain >= LEAST_GAIN
                self.blocks = proposal.blocks
                self.balancer.restart(self.blocks)
                self.moves.append(step)
        return self.blocks.sizes


def test_shards_move_once_to_where_they_belong_and_stay_there():
    cluster = Cluster([0.1, 0.2], 16)
    assert cluster.run(400) == (11, 5)
    assert len(cluster.moves) == 1


def test_shards_come_back_when_a_rank_is_fast_again():
    cluster = Cluster([0.1, 0.2], 16)
    cluster.run(100)
    cluster.shard_s = [0.1, 0.1]
    assert cluster.run(200) == (8, 8)
    assert len(cluster.moves) <= 3  # a window was slow in one half and fast in the other


@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_nothing(seed):
    dice = random.Random(seed)
    cluster = Cluster([0.1] * 3, 24)
    cluster.run(500, lambda rank, step: dice.uniform(0.85, 1.15))
    assert cluster.moves == []


def test_a_long_stall_now_and_then_moves_nothing():
    cluster = Cluster([0.1] * 2, 16)
    cluster.run(400, lambda rank, step: 50.0 if rank == 1 and step % 40 == 7 else 1.0)
    assert cluster.moves == []


def test_a_rank_that_is_slow_and_fast_by_turns_does_not_make_shards_move_forever():
    cluster = Cluster([0.1] * 2, 16)
    cluster.run(4000, lambda rank, step: 2.0 if rank == 1 and step // 20 % 2 else 1.0)
    assert len(cluster.moves) < 15


def test_ranks_without_samples_are_no_evidence():
    balancer = Balancer(blocks_of((4, 4)))
    for _ in range(100):
        balancer.add([[3.0, 0, 1, 1, 0, 2, 0, 2, 1], [0.0, 0, 0, 0, 0, 0, 0, 2, 1]])
        assert balancer.end_step() is None
