"""Which runs move shards at all."""

import pytest

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._loop.balance import may_balance


@pytest.mark.parametrize("strategy", [name for name, strategy in STRATEGIES.items() if not strategy.balances])
def test_shards_stay_where_the_strategy_needs_it(strategy):
    assert not may_balance(RunConfig(strategy=strategy), 2, 8)


def test_shards_stay_if_the_user_says_so_or_if_they_are_few():
    assert may_balance(RunConfig(strategy="exact"), 2, 8)
    assert not may_balance(RunConfig(strategy="exact", balance="off"), 2, 8)
    assert not may_balance(RunConfig(strategy="exact"), 1, 8)
    assert not may_balance(RunConfig(strategy="exact"), 5, 8)
