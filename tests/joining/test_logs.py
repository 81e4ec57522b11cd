"""Logged values are in the event log in the order of steps, and soon."""

import log_scripts
import pytest

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


@pytest.mark.parametrize(("nproc", "windows"), [(1, [4]), (2, [2, 4])])
def test_values_are_in_the_log_soon_after_their_window_and_before_a_later_evaluation(standing_crew, nproc, windows):
    looks, *_ = standing_crew(nproc, log_scripts.log_and_evaluate, 6, shards=2)
    steps = [("step", step, ["loss"]) for step in range(1, 8)]
    expected = [*steps[:5], ("evaluate", 6, ["mean"]), *steps[5:]]
    assert looks[-1] == expected
    # with several processes, windows of two steps are compared when the ranks next agree
    assert looks[4] in [steps[:num_steps] for num_steps in windows]
    assert looks[0] == []


@pytest.mark.parametrize("nproc", [1, 2])
def test_values_of_a_step_that_is_left_are_not_in_the_log(standing_crew, nproc):
    logged, *_ = standing_crew(nproc, log_scripts.leave_and_log, shards=2)
    assert logged == [(step, {"before": step, "loss": step}) for step in range(1, 5)]
