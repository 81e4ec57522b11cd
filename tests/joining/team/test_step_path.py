"""The way of a step through lockstep can be read: it leads through few files."""

import pytest
import team_scripts

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


@pytest.mark.parametrize(("shards", "most"), [(1, 31), (4, 42)])
def test_a_step_of_one_process_leads_through_few_files(crew, shards, most):
    # in a process of its own: objects that others have left are looked at as if they were the
    # script's
    (files,) = crew(1, team_scripts.files_of_a_step, shards=shards)
    assert len(files) <= most, "\n".join(sorted(files))
