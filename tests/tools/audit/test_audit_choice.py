"""Promises of the choice of audited shards: the same on every rank, fair, and every rank within W /
2 audits. Pure."""

import itertools

import pytest
from codes import raises

from lockstep._base.errors import ConfigError
from lockstep._plan.blocks import blocks_of, even_blocks
from lockstep._tools.audit.choice import check_strategy, choose

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("sizes", [(4,), (1, 6, 1), (1,) * 8])
def test_the_shard_is_its_owners_and_has_samples_and_judges_are_both_and_a_third(sizes):
    blocks, world_size, num_shards = blocks_of(sizes), len(sizes), sum(sizes)
    for step, num_filled in itertools.product(range(10, 500, 10), {1, num_shards // 2 or 1, num_shards}):
        found = choose(seed=3, step=step, every=10, num_filled=num_filled, blocks=blocks)
        assert found.shard < num_filled
        assert found.shard in blocks.by_rank[found.owner]
        assert (found.owner != found.auditor) == (world_size > 1)
        both = {found.owner, found.auditor}
        assert both <= set(found.judges)
        assert len(found.judges) == min(world_size, 3)


@pytest.mark.parametrize("world_size", [2, 7, 16])
def test_every_rank_takes_part_within_half_as_many_audits(world_size):
    pairs = [
        choose(seed=1, step=step, every=5, num_filled=16, blocks=even_blocks(world_size, 16)) for step in range(5, 400, 5)
    ]
    half = -(-world_size // 2)
    for first in range(len(pairs) - half):
        taking_part = {rank for pair in pairs[first : first + half] for rank in (pair.owner, pair.auditor)}
        assert taking_part == set(range(world_size))


def test_all_shards_come_to_be_audited():
    found = {choose(seed=0, step=step, every=1, num_filled=8, blocks=even_blocks(4, 8)).shard for step in range(1, 100)}
    assert found == set(range(8))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_strategies_that_cannot_be_audited_are_refused_with_a_way_out(strategy):
    with raises(ConfigError, "audit-unsupported"):
        check_strategy(strategy)
