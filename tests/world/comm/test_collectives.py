"""Every collective gives what its docstring says, on one, two and three processes."""

import itertools

import comm_scripts
import pytest
import torch

from lockstep._base.errors import LaunchError

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


def same(found, expected):
    if expected is None:
        assert found is None
    else:
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected), (found, expected)


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_collectives_give_what_they_promise(standing_crew, nproc):
    last = nproc - 1
    stack = torch.stack([comm_scripts._mine(rank) for rank in range(nproc)])
    rows = torch.stack([torch.arange(2.0 * nproc).view(nproc, 2) + rank for rank in range(nproc)])
    for rank, size, found in standing_crew(nproc, comm_scripts.everything):
        assert size == nproc
        same(found["all_reduce sum"], stack.sum(0))
        same(found["all_reduce mean"], stack.sum(0) / nproc)
        same(found["all_reduce min"], stack[0])
        same(found["all_reduce max"], stack[last])
        same(found["all_reduce product"], (stack + 1).prod(0))
        same(found["all_reduce integers"], stack.sum(0).long())
        same(found["reduce"], stack.sum(0) if rank == last else None)
        same(found["reduce mean"], stack.sum(0) / nproc if rank == 0 else None)
        same(found["broadcast"], stack[last])
        same(found["broadcast to other strides"], stack[last])
        same(found["all_gather"], stack)
        same(found["gather"], stack if rank == last else None)
        same(found["scatter"], rows[last][rank])
        same(found["reduce_scatter"], rows.sum(0)[rank])
        same(found["reduce_scatter mean"], rows.sum(0)[rank] / nproc)
        same(found["reduce_scatter max"], rows[last][rank])
        assert found["all_gather_object"] == [{"rank": r} for r in range(nproc)]
        parts = [(peer, number) for peer in range(nproc) for number in range(peer)]
        stops = list(itertools.accumulate(number for _, number in parts))
        mine = [slice(stop - number, stop) for (peer, number), stop in zip(parts, stops, strict=True) if peer == rank]
        for dtype, (gathered, slices) in found["all_gather_rows"].items():
            same(gathered, torch.cat([stack[peer][:number] for peer, number in parts]).to(dtype))
            assert slices == mine
        same(found["all_gather_rows of one"][0], stack[:, 0])
        assert found["all_gather_rows of one"][1] == [slice(rank, rank + 1)]
        assert found["broadcast_object"] == ("from", last)
        assert found["any"] == (True, False, True)
        if rank == 1:
            same(found["recv"], stack[0])
        members = [0] if nproc == 1 else [last, 0]
        assert ("group" in found) == (rank in members)
        if rank in members:
            assert found["group"] == (len(members), sorted(members)), "numbered from the lowest up"
            assert found["group root"] == max(members)


def test_every_collective_works_in_groups_that_do_not_wait_for_each_other(standing_crew):
    found = standing_crew(5, comm_scripts.groups_of_their_own)
    for rank, (members, own, said) in enumerate(found):
        assert members == ((1, 3) if rank % 2 else (0, 2, 4))
        assert members[own] == rank
        values = [2.0**member for member in members]
        is_last = rank == members[-1]
        assert said == {
            "all_reduce": [sum(values)],
            "reduce": [sum(values)] if is_last else None,
            "broadcast": [values[-1]],
            "all_gather": values,
            "gather": [[value] for value in values] if is_last else None,
            "scatter": [values[-1] + own],
            "reduce_scatter": [sum(values)],
            "all_gather_object": list(members),
            "all_gather_rows": [value for value in values for _ in range(2)],
            "broadcast_object": members[-1],
            "any": rank % 2 == 0,
            **({"recv": [values[0]]} if is_last else {}),
        }


def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_sent(standing_crew):
    for told in standing_crew(2, comm_scripts.mistakes, timeout_s=20.0):
        assert told == [
            "unknown-name",
            "rank-out-of-range",
            "rank-out-of-range",
            "reduce-scatter-shape",
            "group-ranks-invalid",
            "group-ranks-invalid",
            "rank-out-of-range",
            "mean-of-integers",
            "group-of-sub-group",
            "gather-rows-empty",
            "gather-rows-differ",
            "gather-rows-differ",
        ]


def test_results_have_no_gradients(standing_crew):
    assert standing_crew(2, comm_scripts.gradients_do_not_travel) == [[False, False, False]] * 2


def test_a_rank_that_does_not_come_is_an_error_after_the_timeout(crew):
    # (Who waits for whom is reported besides, if the machine is quick enough: tests/tools/explain.)
    with pytest.raises(LaunchError, match=r"(?m)rank 0 of 2"):
        crew(2, comm_scripts.ask_for_a_rank_that_never_comes)


@pytest.mark.quick
def test_all_groups_have_the_timeout_of_the_run(standing_crew):
    assert standing_crew(1, comm_scripts.timeouts, 77.0) == [[77.0, 77.0]]


@pytest.mark.quick
def test_a_sub_group_of_devices_waits_longer_than_that_of_the_cpu_as_the_runs_does(standing_crew):
    assert standing_crew(1, comm_scripts.timeouts_of_devices, 77.0) == [[2 * 77.0 + 60.0, 77.0]]
