"""The way of a step through lockstep, counted: what it adds to the step of a small model depends on
little else."""

import pytest
import team_scripts

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


@pytest.mark.parametrize(("shards", "most_calls", "most_files"), [(1, 85, 31), (4, 531, 42)])
def test_a_step_of_one_process_passes_few_functions_in_few_files(crew, shards, most_calls, most_files):
    # in a process of its own: objects that others have left are looked at as if they were the
    # script's
    (calls,) = crew(1, team_scripts.count_calls, shards=shards)
    listed = "\n".join(f"{number} {name}" for name, number in sorted(calls.items()))
    assert calls.total() <= most_calls, listed
    assert len({name.split(":")[0] for name in calls}) <= most_files, listed
