"""A trace of some steps by PyTorch's profiler."""

import json
from functools import partial
from pathlib import Path

import pytest
from explain_scripts import train

from lockstep.base.errors import ConfigError
from lockstep.tools.explain.options import ProfileOptions


def count_of(name, rank):
    events = json.loads(Path("run", "profile", f"rank-{rank}.json").read_text())["traceEvents"]
    return sum(event.get("name") == name for event in events)


def test_each_rank_has_a_trace_of_the_steps_asked_for(crew):
    crew(2, partial(train, 10), shards=2, profile="3:5")
    assert [count_of("aten::linear", rank) for rank in (0, 1)] == [2 * 3] * 2  # layers and steps


def test_a_run_that_ends_before_the_last_step_has_a_trace_of_what_it_did(crew):
    crew(1, partial(train, 4), profile="3:50")
    assert count_of("aten::linear", 0) == 2 * 2


@pytest.mark.parametrize("profile", ["7", "5:3", "0:3", "a:b", 7, ""])
def test_what_is_no_pair_of_steps_is_refused(profile):
    with pytest.raises(ConfigError, match="give the first and the last step to profile, as in 100:110"):
        ProfileOptions(profile=profile)
