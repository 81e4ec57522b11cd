"""Whatever happens to the hosts of a run, it loses nothing: see ``soak_hosts``."""

import functools

import pytest
from soak_hosts import BLOWS, Round
from soaking import Tally, assert_nothing_was_lost, play


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(400)
def test_runs_on_two_hosts_that_are_struck_at_random_lose_nothing(cluster, nurseries):
    tally, expected = Tally(), {}
    for seed in (121, 175, 248):
        play(
            functools.partial(Round, cluster=cluster, nurseries=nurseries, kinds=("samples",), most=1), seed, expected, tally
        )
    assert_nothing_was_lost(tally)
    assert tally.seen.keys() >= {BLOWS[0], BLOWS[2], BLOWS[4]}
