"""The ranks are compared in all that must be the same on them: whatever one of them alone changes
is noticed."""

import parting
import pytest


@pytest.mark.quick
@pytest.mark.timeout(60)
def test_a_change_on_one_rank_is_noticed_whatever_it_is(crew):
    for found in crew(2, parting.codes):
        assert found == {"nothing": "", **dict.fromkeys(parting.PARTS, "ranks-diverged")}
