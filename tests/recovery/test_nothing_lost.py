"""The central test: killed at random moments and gone on with at other world sizes, a run loses nothing. See ``soak``."""

import pytest
import soak


def assert_nothing_was_lost(tally):
    assert not tally.failures, "\n\n".join(tally.failures)
    assert (tally.lost, tally.repeated, tally.differing) == (0, 0, 0)
    assert tally.kills > 0
    assert tally.resumed > 0


@pytest.mark.timeout(120)
def test_a_run_killed_at_random_uses_every_sample_once_and_ends_with_the_digest_of_the_undisturbed():
    tally, expected = soak.Tally(), {}
    soak.play(0, expected, tally, most_kills=1, kinds=("samples",))
    assert_nothing_was_lost(tally)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_half_a_dozen_runs_killed_up_to_three_times_lose_nothing_either():
    tally, expected = soak.Tally(), {}
    for seed in range(100, 106):
        soak.play(seed, expected, tally)
    assert_nothing_was_lost(tally)
