"""Whichever rank has something else is named, on all ranks, with the first thing that differs."""

import pytest

import lockstep
from lockstep._base.errors import MismatchError
from lockstep._world.comm.agreement import compare_ranks

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
LINES = ["one", "two"]
OTHERS = {"another": ["one", "2"], "fewer": ["one"], "more": ["one", "two", "three"], "none": []}
DIFFER = {
    "another": ("two", "2"),
    "fewer": ("two", "nothing more"),
    "more": ("nothing more", "three"),
    "none": ("one", None),
}


def compared(lines):
    """What this rank is told where one rank has other lines, for each rank and each way."""
    with lockstep.join() as team:
        compare_ranks("lines", LINES, team)
        told = {}
        for odd in range(team.world_size):
            for how, others in lines.items():
                with pytest.raises(MismatchError) as error:
                    compare_ranks("lines", others if team.rank == odd else LINES, team)
                told[odd, how] = str(error.value)
        return told


def test_the_rank_that_has_something_else_is_named_on_all_ranks(standing_crew):
    first, *others = standing_crew(3, compared, OTHERS)
    assert others == [first] * 2
    for (odd, how), text in first.items():
        ours, theirs = DIFFER[how][:: 1 if odd else -1]
        assert f"rank 0 has `{ours or 'nothing more'}`, rank {odd or 1} has `{theirs or 'nothing more'}`" in text
