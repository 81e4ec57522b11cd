"""Promises of the plan: who computes what, whatever the numbers."""

import pytest
from codes import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep._base.errors import ConfigError
from lockstep._plan.blocks import block, even_blocks
from lockstep._plan.shards import deal, plan_step, shard_slice

pytestmark = pytest.mark.timeout(30)

samples = st.integers(0, 300)
shards = st.integers(1, 70)
worlds = st.tuples(shards, shards).map(lambda pair: (min(pair), max(pair)))  # world size, shards
quick = settings(deadline=None, max_examples=40)


def plans(num_samples, world_size, num_shards, step=3):
    sizes = num_samples if isinstance(num_samples, tuple) else (num_samples,)
    return [plan_step(step, sizes, rank, even_blocks(world_size, num_shards)) for rank in range(world_size)]


def micro_batches(*numbers):
    return [plan.micro_batches for plan in plans(*numbers)]


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
@given(worlds)
def test_blocks_are_contiguous_in_rank_order_and_cover_all_shards(world):
    world_size, num_shards = world
    blocks = [block(rank, world_size, num_shards) for rank in range(world_size)]
    assert [shard for owned in blocks for shard in owned] == list(range(num_shards))
    assert all(len(owned) >= 1 for owned in blocks)
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@pytest.mark.parametrize("world_size", [3, 8])
def test_more_processes_than_shards_is_an_error_with_the_remedy(world_size):
    with raises(ConfigError, "world-size-above-shards") as caught:
        block(0, world_size, 2)
    assert f"shards={world_size}" in str(caught.value)


@quick
@given(samples, worlds)
def test_how_a_global_batch_is_cut_does_not_depend_on_the_number_of_processes(num_samples, world):
    world_size, num_shards = world
    alone = micro_batches(num_samples, 1, num_shards)[0]
    together = [micro for own in micro_batches(num_samples, world_size, num_shards) for micro in own]
    what = [(micro.shard, micro.num_samples, micro.step_samples, micro.step, micro.fraction) for micro in alone]
    assert [(m.shard, m.num_samples, m.step_samples, m.step, m.fraction) for m in together] == what
    assert [micro.shard for micro in alone] == list(range(min(num_samples, num_shards)))


@quick
@given(samples, worlds)
def test_the_ranks_with_samples_are_a_prefix_and_all_ranks_know_how_many(num_samples, world):
    world_size, num_shards = world
    by_rank = plans(num_samples, world_size, num_shards)
    active = even_blocks(world_size, num_shards).num_active(min(num_samples, num_shards))
    assert [bool(plan.micro_batches) for plan in by_rank] == [rank < active for rank in range(world_size)]
    assert {(plan.number, plan.num_samples, plan.num_active_ranks) for plan in by_rank} == {(3, num_samples, active)}


@quick
@given(st.lists(samples, min_size=1, max_size=4).map(tuple).filter(sum), worlds)
def test_parts_of_an_accumulated_step_come_shard_by_shard(sizes, world):
    world_size, num_shards = world
    together = [micro for own in micro_batches(sizes, world_size, num_shards) for micro in own]
    assert [(m.shard, m.part) for m in together] == sorted((m.shard, m.part) for m in together)
    for part, size in enumerate(sizes):
        cut = [(m.shard, m.num_samples, m.batch_samples) for m in together if m.part == part]
        assert cut == [(m.shard, m.num_samples, size) for m in micro_batches(size, 1, num_shards)[0]]
    assert sum(micro.fraction for micro in together) == pytest.approx(1, abs=1e-12)
    for shard in {micro.shard for micro in together}:
        own = [micro for micro in together if micro.shard == shard]
        assert [micro.begins_shard for micro in own] == [True] + [False] * (len(own) - 1)
        assert [micro.ends_shard for micro in own] == [False] * (len(own) - 1) + [True]
    assert {plan.num_samples for plan in plans(sizes, world_size, num_shards)} == {sum(sizes)}


@quick
@given(samples, st.integers(1, 40))
def test_dealing_gives_every_item_to_one_process_in_turn(num_items, world_size):
    dealt = [deal(num_items, rank, world_size) for rank in range(world_size)]
    assert sorted(item for own in dealt for item in own) == list(range(num_items))
    assert all(item % world_size == rank for rank, own in enumerate(dealt) for item in own)
