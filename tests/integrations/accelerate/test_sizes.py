"""Sizes in views and weights are those of a shard, on any number of processes."""

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]


def test_sizes_of_views_and_weights_are_those_of_shards(nest, tmp_path):
    by_world = []
    for processes in (1, 2):
        statuses, results = nest.run(processes, "sizes", "meant", [], tmp_path)
        assert statuses == [0] * processes, (tmp_path / "log-0").read_text()[-3000:]
        by_world += results
    assert by_world == [by_world[0]] * 3
    mean, *others = by_world[0]
    for other in others:
        assert other == pytest.approx(mean, rel=1e-5, abs=1e-7)
