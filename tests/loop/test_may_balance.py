"""Which runs move shards at all."""

import pytest

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._loop.balance import may_balance
from lockstep._plan.blocks import blocks_of, even_blocks


@pytest.mark.parametrize("strategy", [name for name, strategy in STRATEGIES.items() if not strategy.balances])
def test_shards_stay_where_the_strategy_needs_it(strategy):
    assert not may_balance(RunConfig(strategy=strategy), 2, 8, "cpu")


def test_shards_stay_if_the_user_says_so_or_if_they_are_few():
    assert may_balance(RunConfig(strategy="exact"), 2, 8, "cpu")
    assert not may_balance(RunConfig(strategy="exact", balance="off"), 2, 8, "cpu")
    assert not may_balance(RunConfig(strategy="exact"), 1, 8, "cpu")
    assert not may_balance(RunConfig(strategy="exact"), 5, 8, "cpu")


@pytest.mark.parametrize("device", ["cuda", "sim"])
def test_shards_stay_on_a_device_which_has_no_memory_for_more_subtrees_unless_the_user_says_so(device):
    assert not may_balance(RunConfig(strategy="exact"), 2, 8, device)
    assert may_balance(RunConfig(strategy="exact", balance="on"), 2, 8, device)


def test_one_shard_that_moves_gives_nearly_every_process_three_subtrees_more():
    assert [len(of_rank) for of_rank in even_blocks(8, 64).roots] == [1] * 8
    assert [len(of_rank) for of_rank in blocks_of((9, 8, 8, 8, 8, 8, 8, 7)).roots] == [2, 4, 4, 4, 4, 4, 4, 3]
