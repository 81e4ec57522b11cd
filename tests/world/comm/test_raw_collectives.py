"""Collectives that a script calls by itself are refused wherever they would combine single shards,
and nowhere else."""

import pytest
import raw_scripts

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


def assert_refused(found):
    for kind, code, message in found:
        assert (kind, code) == ("UsageError", "collective-inside-shards"), message
    # the second shard of each rank
    assert ["step 2, shard 1" in found[0][2], "step 2, shard 3" in found[-1][2]] == [True, len(found) == 2]


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    "place",
    [
        "before the forward pass",
        "before the backward pass",
        "between two backward passes",
        "after the backward pass",
        "without a backward pass",
    ],
)
def test_a_collective_inside_a_shard_is_refused_wherever_it_is_called(standing_crew, nproc, place):
    assert_refused(standing_crew(nproc, raw_scripts.told, place, shards=2 * nproc))


@pytest.mark.parametrize("name", raw_scripts.COLLECTIVES)
def test_so_is_every_collective(standing_crew, name):
    assert_refused(standing_crew(1, raw_scripts.told, "after the backward pass", name, shards=2))


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    "place",
    [
        "before the loop",
        "before the shards",
        "in the backward pass",  # not told from what strategies send there
        "after the shards",
        "after the step",
        "after the loop",
    ],
)
def test_a_collective_that_is_called_elsewhere_is_left_in_peace(standing_crew, nproc, place):
    assert standing_crew(nproc, raw_scripts.told, place, shards=2 * nproc) == [None] * nproc
