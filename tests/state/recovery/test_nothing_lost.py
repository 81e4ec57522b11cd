"""The central test: killed at random moments and resumed at other world sizes, a run loses nothing.
See ``soak``."""

import functools

import pytest
from seeds import seeds
from soak import Round
from soaking import Tally, assert_nothing_was_lost, play


@pytest.fixture
def warm_round(nursery):
    """A ``Round`` whose launchers import nothing anew."""

    class WarmRound(Round):
        def start(self, asked, *, env, cwd, output):
            return nursery.start(asked, env=env, cwd=cwd, stdout=output, stderr=output)

    return WarmRound


@pytest.mark.timeout(120)
def test_a_run_killed_at_random_uses_every_sample_once_and_ends_as_undisturbed(warm_round):
    tally = Tally()
    play(functools.partial(warm_round, most_kills=1, kinds=("samples",)), 0, {}, tally)
    assert_nothing_was_lost(tally)
    assert tally.seen["kills"] > 0


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(1200)
def test_a_few_runs_killed_up_to_three_times_lose_nothing_either():
    tally, expected = Tally(), {}
    for seed in seeds(100, 3):
        play(Round, seed, expected, tally)
    assert_nothing_was_lost(tally)
    assert tally.seen["kills"] > 0
