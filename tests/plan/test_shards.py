"""Promises of the plan: who computes what, whatever the numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import ConfigError
from lockstep.plan.shards import block, deal, micro_steps, num_active_ranks, shard_slice

pytestmark = pytest.mark.timeout(30)

samples = st.integers(0, 300)
shards = st.integers(1, 70)
worlds = st.tuples(shards, shards).map(lambda pair: (min(pair), max(pair)))  # world size, shards
quick = settings(deadline=None, max_examples=150)


def turns(num_samples, world_size, num_shards, step=3):
    return [micro_steps(step, (num_samples,), rank, world_size, num_shards) for rank in range(world_size)]


@quick
@given(samples, shards)
def test_every_sample_is_in_exactly_one_shard_and_shards_are_in_order(num_samples, num_shards):
    parts = [range(num_samples)[shard_slice(shard, num_samples, num_shards)] for shard in range(num_shards)]
    assert [sample for part in parts for sample in part] == list(range(num_samples))


@quick
@given(samples, shards)
def test_sizes_differ_by_at_most_one_and_the_larger_come_first(num_samples, num_shards):
    parts = [shard_slice(shard, num_samples, num_shards) for shard in range(num_shards)]
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@quick
@given(samples, shards)
def test_shards_are_empty_only_if_there_are_fewer_samples_than_shards_and_then_the_last_ones(num_samples, num_shards):
    parts = [shard_slice(shard, num_samples, num_shards) for shard in range(num_shards)]
    filled = [part.stop > part.start for part in parts]
    assert filled == [shard < num_samples for shard in range(num_shards)]


@quick
@given(worlds)
def test_blocks_are_contiguous_in_rank_order_and_cover_all_shards(world):
    world_size, num_shards = world
    blocks = [block(rank, world_size, num_shards) for rank in range(world_size)]
    assert [shard for owned in blocks for shard in owned] == list(range(num_shards))
    assert all(len(owned) >= 1 for owned in blocks)
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@pytest.mark.parametrize("world_size", [3, 8])
def test_more_processes_than_shards_is_an_error_with_the_remedy(world_size):
    with pytest.raises(ConfigError, match=rf"{world_size} processes for 2 shards.*at most 2.*shards={world_size}"):
        block(0, world_size, 2)


@quick
@given(samples, worlds)
def test_how_a_global_batch_is_cut_does_not_depend_on_the_number_of_processes(num_samples, world):
    world_size, num_shards = world
    alone = turns(num_samples, 1, num_shards)[0]
    together = [turn for own in turns(num_samples, world_size, num_shards) for turn in own]
    what = [(turn.shard, turn.num_samples, turn.step_samples, turn.step, turn.fraction) for turn in alone]
    assert [(turn.shard, turn.num_samples, turn.step_samples, turn.step, turn.fraction) for turn in together] == what
    assert [turn.shard for turn in alone] == list(range(min(num_samples, num_shards)))


@quick
@given(samples.filter(bool), worlds)
def test_fractions_sum_to_one(num_samples, world):
    fractions = [turn.fraction for own in turns(num_samples, *world) for turn in own]
    assert sum(fractions) == pytest.approx(1, abs=1e-12)
    assert all(fraction > 0 for fraction in fractions)


@quick
@given(samples, worlds)
def test_the_ranks_with_samples_are_a_prefix_and_all_ranks_know_how_many(num_samples, world):
    world_size, num_shards = world
    by_rank = turns(num_samples, world_size, num_shards)
    active = num_active_ranks(num_samples, world_size, num_shards)
    assert [bool(own) for own in by_rank] == [rank < active for rank in range(world_size)]
    assert all(turn.num_active_ranks == active for own in by_rank for turn in own)


@quick
@given(samples.filter(bool), worlds)
def test_exactly_the_last_turn_of_a_rank_ends_its_step(num_samples, world):
    for own in turns(num_samples, *world):
        assert [turn.index for turn in own] == list(range(len(own)))
        assert [turn.is_last for turn in own] == [False] * (len(own) - 1) + [True] * bool(own)


@quick
@given(samples, st.integers(1, 40))
def test_dealing_gives_every_item_to_one_process_in_turn(num_items, world_size):
    dealt = [deal(num_items, rank, world_size) for rank in range(world_size)]
    assert sorted(item for own in dealt for item in own) == list(range(num_items))
    assert all(item % world_size == rank for rank, own in enumerate(dealt) for item in own)
