"""Promises of the plan of who computes how many shards: valid, fair, and not moved by noise.
Pure."""

import operator
import random

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from lockstep._plan.balance import Balancer, StepTimes, best_blocks, can_balance, fair_sizes
from lockstep._plan.blocks import blocks_of, even_blocks

pytestmark = pytest.mark.timeout(60)
quick = settings(deadline=None, max_examples=25, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])

seconds = st.floats(0, 100)
paces = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        st.integers(size, 8 * size),
        st.lists(seconds, min_size=size, max_size=size),
        st.lists(seconds, min_size=size, max_size=size),
    )
)


def pace_of(shard_s, once_s=None):
    return StepTimes(shard_s=shard_s, once_s=[0.0] * len(shard_s) if once_s is None else once_s, step_s=1.0)


@quick
@given(paces)
def test_any_times_give_blocks_of_all_shards_in_rank_order_and_at_least_one_each(times):
    num_shards, shard_s, once_s = times
    blocks = best_blocks(num_shards, pace_of(shard_s, once_s))
    assert blocks.world_size == len(shard_s)
    assert [shard for owned in blocks.by_rank for shard in owned] == list(range(num_shards))
    assert min(blocks.sizes) >= 1
    assert [blocks.owner(shard) for owned in blocks.by_rank for shard in owned] == [
        rank for rank, size in enumerate(blocks.sizes) for _ in range(size)
    ]


@quick
@given(paces)
def test_nobody_could_give_a_shard_to_another_and_all_be_ready_earlier(times):
    num_shards, shard_s, once_s = times
    sizes = fair_sizes(num_shards, shard_s, once_s)
    ready = [once + size * each for once, size, each in zip(once_s, sizes, shard_s, strict=True)]
    last = ready.index(max(ready))
    if sizes[last] > 1:
        then = min(ready[rank] + shard_s[rank] for rank in range(len(sizes)) if rank != last) if len(sizes) > 1 else ready[0]
        assert then >= ready[last] * (1 - 1e-6)


@quick
@given(paces)
def test_the_blocks_are_never_predicted_to_be_worse_than_even_ones(times):
    num_shards, shard_s, once_s = times
    pace = pace_of(shard_s, once_s)
    even = even_blocks(len(shard_s), num_shards)
    assert pace.busy_s(best_blocks(num_shards, pace)) <= pace.busy_s(even) * (1 + 1e-6)


def test_a_rank_at_half_speed_gets_about_half():
    assert best_blocks(16, pace_of([1.0, 2.0])).sizes == (11, 5)
    assert best_blocks(16, pace_of([2.0, 1.0, 1.0])).sizes in ((3, 6, 7), (3, 7, 6))


def test_what_ranks_do_once_a_step_counts():
    assert best_blocks(8, pace_of([1.0, 1.0], once_s=[4.0, 0.0])).sizes == (2, 6)


def first_move(unit_s):
    """The sizes of the first blocks that are proposed for two ranks, of which the first does as
    much once a step as for four shards."""
    balancer = Balancer(even_blocks(2, 8))
    for _ in range(2000):
        rows = [[16.0, 0, 2, 2, 4 - waits, 8 - waits, 4, waits, 1] for waits in (0, 4)]
        balancer.add([[row[0], *(unit_s * seconds for seconds in row[1:-1]), row[-1]] for row in rows])
        proposal = balancer.end_step()
        if proposal is not None:
            return proposal.blocks.sizes
    return None


def test_short_steps_are_measured_as_long_ones():
    assert first_move(1.0) == first_move(0.005) == (2, 6)


def test_there_must_be_two_shards_a_process():
    for world_size in range(1, 9):
        for num_shards in range(world_size, 3 * world_size):
            assert can_balance(world_size, num_shards) == (1 < world_size <= num_shards / 2)


class Cluster:
    """Ranks that take so long for a shard, and once a step, and a Balancer that moves shards."""

    def __init__(self, shard_s, num_shards, once_s=0.01, data_s=0.0):
        self.shard_s, self.data_s = list(shard_s), data_s
        self.once_s = once_s if isinstance(once_s, list) else [once_s] * len(shard_s)
        self.blocks = even_blocks(len(shard_s), num_shards)
        self.balancer = Balancer(self.blocks)
        self.moves = []
        self.step = 0

    def run(self, num_steps, noise=lambda rank, step: 1.0):
        idle = [0.01] * len(self.shard_s)
        for _ in range(num_steps):
            sizes, noises = self.blocks.sizes, [noise(rank, self.step) for rank in range(len(self.shard_s))]
            in_shards = [size * each * noise for size, each, noise in zip(sizes, self.shard_s, noises, strict=True)]
            busy = [own + once + self.data_s for own, once in zip(in_shards, self.once_s, strict=True)]
            self.balancer.add(
                [
                    [4.0 * size, self.data_s, own / 2, own / 2, once, all_s, own, waited, float(self.step)]
                    for size, own, once, all_s, waited in zip(sizes, in_shards, self.once_s, busy, idle, strict=True)
                ]
            )
            idle = [max(busy) - own + 0.01 for own in busy]
            proposal = self.balancer.end_step()
            if proposal is not None:
                assert 0 <= proposal.gain < 1
                self.blocks = proposal.blocks
                self.balancer.restart(self.blocks)
                self.moves.append(self.step)
            self.step += 1
        return self.blocks.sizes


def bell(seed, deviation):
    dice = random.Random(seed)
    return lambda rank, step: max(0.3, dice.gauss(1, deviation))


def test_shards_move_once_to_where_they_belong_and_stay_there():
    cluster = Cluster([0.1, 0.2], 16)
    assert cluster.run(400) == (11, 5)
    assert len(cluster.moves) == 1


def test_what_a_rank_does_once_a_step_is_no_time_of_its_shards():
    cluster = Cluster([0.1, 0.1], 16, once_s=[0.8, 0.0])
    assert cluster.run(400) == (4, 12)
    assert len(cluster.moves) == 1


def test_shards_come_back_when_a_rank_is_fast_again():
    cluster = Cluster([0.1, 0.2], 16)
    cluster.run(100)
    cluster.shard_s = [0.1, 0.1]
    assert cluster.run(200) == (8, 8)
    assert len(cluster.moves) <= 3  # a window was slow in one half and fast in the other


few = settings(deadline=None, max_examples=4, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])
seeds = st.integers(0, 2**16)


def equal_ranks(world_size, num_shards):
    return Cluster([0.8 * world_size / num_shards] * world_size, num_shards)


@few
@given(st.integers(2, 8), st.integers(0, 50), seeds)
@example(3, 2, 0)
def test_neither_noise_of_a_fifth_nor_stalls_of_any_length_move_shards_between_equal_machines(world_size, more, seed):
    dice, num_shards = random.Random(seed), 2 * world_size + more
    noisy, stalled = equal_ranks(world_size, num_shards), equal_ranks(world_size, num_shards)
    noisy.run(400, bell(seed, 0.2))
    noise = bell(seed, 0.1)
    stalled.run(400, lambda rank, step: noise(rank, step) + (dice.paretovariate(1.2) if dice.random() < 0.01 else 0.0))
    assert noisy.moves == stalled.moves == []


@few
@given(st.integers(2, 8), st.integers(8, 16), seeds)
def test_a_rank_at_half_speed_is_found_within_five_windows_in_spite_of_noise(world_size, each, seed):
    cluster = equal_ranks(world_size, each * world_size)
    slow = seed % world_size
    cluster.shard_s[slow] *= 2
    sizes = cluster.run(5 * 8, bell(seed, 0.2))
    assert sizes[slow] == min(sizes) <= 0.8 * each


def test_a_slow_rank_is_found_in_the_end_however_much_times_vary():
    cluster = Cluster([0.2, 0.4], 8)
    dice = random.Random(0)
    assert cluster.run(600, lambda rank, step: dice.lognormvariate(0, 0.5)) in ((5, 3), (6, 2))


def test_a_rank_that_is_slow_and_fast_by_turns_does_not_make_shards_move_forever():
    cluster = Cluster([0.1] * 2, 16)
    cluster.run(4000, lambda rank, step: 2.0 if rank == 1 and step // 20 % 2 else 1.0)
    assert len(cluster.moves) < 15


class Quota:
    """A processor that a rank may have for a share of each period, and then not at all."""

    def __init__(self, share, period_s, dice):
        self.budget_s, self.period_s = share * period_s, period_s
        self.ends_s, self.left_s = period_s * dice.random(), self.budget_s

    def work(self, now_s, work_s):
        """When such work is done that begins now."""
        while work_s > 1e-12:
            if now_s >= self.ends_s - 1e-12:
                self.ends_s += self.period_s * (1 + (now_s - self.ends_s) // self.period_s)
                self.left_s = self.budget_s
            ran_s = min(work_s, self.left_s, self.ends_s - now_s)
            now_s, work_s, self.left_s = now_s + ran_s, work_s - ran_s, self.left_s - ran_s
            if self.left_s <= 1e-12:
                now_s = max(now_s, self.ends_s)
        return now_s


class Quotas:
    """Ranks with quotas, which exchange gradients, and a Balancer."""

    def __init__(self, shares, num_shards, shard_s, period_s, seed, exchange_s=0.02):
        """``exchange_s``: of work for each rank, for each subtree that it has at most."""
        self.dice = random.Random(seed)
        self.shard_s, self.exchange_s = shard_s, exchange_s
        self.processors = [Quota(share, period_s, self.dice) for share in shares]
        self.blocks = even_blocks(len(shares), num_shards)
        self.balancer = Balancer(self.blocks)
        self.moves = []

    def run(self, num_steps):
        ready_s = reported_s = [0.0] * len(self.processors)
        for step in range(num_steps):
            done_s = [
                own.work(ready, sum(self.shard_s * max(0.3, self.dice.gauss(1, 0.1)) for _ in range(size)))
                for own, ready, size in zip(self.processors, ready_s, self.blocks.sizes, strict=True)
            ]
            self.balancer.add(
                [
                    [4.0 * size, 0, busy / 2, busy / 2, 0, busy, busy, ready - reported, step]
                    for size, busy, ready, reported in zip(
                        self.blocks.sizes, map(operator.sub, done_s, ready_s), ready_s, reported_s, strict=True
                    )
                ]
            )
            exchange_s = self.exchange_s * self.blocks.most_roots
            reported_s, ready_s = done_s, [own.work(max(done_s), exchange_s) for own in self.processors]
            proposal = self.balancer.end_step()
            if proposal is not None:
                self.blocks = proposal.blocks
                self.balancer.restart(self.blocks)
                self.moves.append(self.blocks.sizes)
        return self.moves


@few
@given(st.sampled_from([0.01, 0.1]), st.sampled_from([0.005, 0.05]), seeds)
def test_a_quota_of_half_moves_shards_once_to_the_best_blocks_and_equal_quotas_move_nothing(period_s, shard_s, seed):
    assert Quotas([1, 0.5], 16, shard_s, period_s, seed, 0.02 * shard_s).run(200) == [(11, 5)]
    assert Quotas([0.5, 0.5], 16, 0.05, 0.1, seed).run(300) == []


def test_a_move_after_which_steps_are_no_shorter_is_undone_and_not_tried_forever():
    assert Quotas([1, 0.5], 16, 0.05, 0.01, 0, exchange_s=0.3).run(600)[1::2] == [(8, 8)] * 2


def test_what_is_read_for_all_shards_moves_none():
    cluster = Cluster([0.01] * 2, 16, data_s=10.0)
    cluster.run(100, lambda rank, step: 1.3 if rank else 1.0)
    assert cluster.moves == []


def test_ranks_without_samples_are_no_evidence():
    balancer = Balancer(blocks_of((4, 4)))
    for _ in range(100):
        balancer.add([[3.0, 0, 1, 1, 0, 2, 2, 0, 1], [0.0, 0, 0, 0, 0, 0, 0, 2, 1]])
        assert balancer.end_step() is None
