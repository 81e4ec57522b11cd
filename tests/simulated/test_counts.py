"""What a step launches and waits for, beside the passes of its model."""

import pytest
import scripts

pytestmark = pytest.mark.timeout(120)
BESIDE = 120
"""Launches of a step that do not depend on the model's size."""


def total(counts):
    return sum(counts.values())


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_step_waits_once_for_the_values_added_to_its_batch(crew, nproc):
    for one in crew(nproc, scripts.count, shards=2, checkpoint_every="off"):
        (place,) = one["step"]["waits"]
        assert "values.py" in place
        assert total(one["step"]["waits"]) == 1
        assert one["step"]["reports"] == []


def test_a_scaled_loss_costs_one_wait_more(crew):
    (one,) = crew(1, scripts.count, shards=2, checkpoint_every="off", precision="16-mixed")
    assert total(one["step"]["waits"]) == 2
    assert sum(count for place, count in one["step"]["waits"].items() if "scaling.py" in place) == 1


def test_a_step_launches_little_more_than_the_passes_of_its_model(crew):
    (small,) = crew(1, scripts.count, 8, shards=2, checkpoint_every="off")
    (large,) = crew(1, scripts.count, 24, shards=2, checkpoint_every="off")
    passes = total(large["plain"]["launches"]) - total(small["plain"]["launches"])
    assert passes > 0
    assert total(large["step"]["launches"]) - total(small["step"]["launches"]) <= 1.2 * passes
    assert total(small["step"]["launches"]) - total(small["plain"]["launches"]) <= BESIDE


@pytest.mark.parametrize("nproc", [1, 2])
def test_parameters_have_gradients_where_any_shard_gave_one_though_the_sums_are_not_read(crew, nproc):
    sides = [(0, 0), (0, 0), (0, 1), (1, 1), (0, 0), (0, 1), (1, 0)]
    (on_cpu,) = crew(1, scripts.choose, sides, shards=2, device="cpu")
    for found in crew(nproc, scripts.choose, sides, shards=2):
        assert found == on_cpu
