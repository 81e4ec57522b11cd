"""The ranks are compared in all that must be the same on them: whatever one of them alone changes
is noticed, and not saved."""

import parting
import pytest

pytestmark = [pytest.mark.quick, pytest.mark.timeout(60)]


def test_a_change_on_one_rank_is_noticed_whatever_it_is(crew):
    for found in crew(2, parting.codes):
        assert found == {"nothing": "", **dict.fromkeys(parting.PARTS, "ranks-diverged")}


def test_nothing_is_saved_of_ranks_that_have_parted(crew):
    for found in crew(2, parting.saved_in_spite):
        assert found == dict.fromkeys(parting.PLACES, ("ranks-diverged", []))


def test_what_rank_0_alone_changes_behind_the_epochs_is_no_end_of_its_run(crew):
    found, _ = crew(2, parting.changed_at_the_end)
    assert found["end"] == ("step-00000004", True, True)
    assert found["break"][:2] == ("step-00000002", True)
