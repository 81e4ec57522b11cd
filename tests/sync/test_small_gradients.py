"""Small gradients travel with the numbers of their phase, in one message, and are the sums that they would be by themselves."""

import pytest
import sync_scripts
import torch
from torch import nn

from lockstep.sync import together
from lockstep.sync.together import fits, size_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


@pytest.mark.parametrize("nproc", [2, 3])
def test_rows_come_by_rank_and_sums_are_over_all_ranks_in_every_format(standing_crew, nproc):
    by_rank = standing_crew(nproc, sync_scripts.send_together)
    for rows, sums in by_rank:
        assert rows == [[float(rank), 0.1, float("-inf")] for rank in range(nproc)]
        assert len(sums) == 2
        for call, found in enumerate(sums):
            assert sorted(found) == ["complex", "double", "filters", "narrow", "weight"]
            for name, (dtype, strides, value) in found.items():
                parameter = sync_scripts.of_many_formats()[name]
                first = 1 if name == "weight" else 0  # rank 0 has none of that
                expected = sum(sync_scripts.gradient_of(parameter, rank, call) for rank in range(first, nproc))
                assert (dtype, strides) == (expected.dtype, parameter.stride())
                assert torch.equal(value, expected)
        assert all(torch.equal(sums[0][name][2], by_rank[0][1][0][name][2]) for name in sums[0])


def test_what_no_rank_has_a_gradient_of_has_none_and_no_call_is_no_sum(standing_crew):
    for rows, sums in standing_crew(2, sync_scripts.send_together, 0):
        assert (len(rows), sums) == (2, [])


def test_only_what_is_small_for_so_many_ranks_goes_together(monkeypatch):
    monkeypatch.setattr(together, "MOST_BYTES", 800)
    weights = [nn.Parameter(torch.zeros(100)), nn.Parameter(torch.zeros(100, dtype=torch.bfloat16))]  # sent in float32
    assert fits(size_of(weights), 2)
    assert not fits(size_of(weights), 3)
    assert not fits(size_of([*weights, nn.Parameter(torch.zeros(1))]), 2)
    assert not fits(size_of([nn.Parameter(torch.zeros(1, device="meta"))]), 2)
