"""A run's history has each step once, of the last launch that took it: any launches, killed and
resumed anywhere."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lockstep._events.history import history, launches

pytestmark = pytest.mark.timeout(30)
OF_STEPS = ("step", "evaluate", "epoch", "end")
"""Written again by a launch that resumes before them. What was saved, or seen to be slow, stays."""


@st.composite
def runs(draw):
    """For each launch after which step it begins and which it takes, with the kinds of events in
    each."""
    found, newest = [], 0
    for _ in range(draw(st.integers(1, 5))):
        after = draw(st.integers(0, newest))
        steps = range(after + 1, after + 1 + draw(st.integers(0, 4)))
        found.append((after, [(step, draw(st.lists(st.sampled_from([*OF_STEPS, "checkpoint", "slow"])))) for step in steps]))
        newest = max([newest, *steps])
    return found


@settings(deadline=None, max_examples=50, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(runs())
def test_an_event_of_a_step_counts_unless_a_later_launch_began_before_it(run):
    events, expected = [], []
    for number, (after, steps) in enumerate(run):
        begin = [{"event": "start"}, *([{"event": "resume", "step": after}] if number else [])]
        of_steps = [{"event": kind, "step": step, "launch": number} for step, kinds in steps for kind in ["step", *kinds]]
        events += [*begin, *of_steps]
        later = [other for other, _ in run[number + 1 :]]
        is_repeated = [event["event"] in OF_STEPS and any(event["step"] > other for other in later) for event in of_steps]
        expected += [*begin, *(event for event, out in zip(of_steps, is_repeated, strict=True) if not out)]
    assert history(events) == expected
    assert [launch.last_step for launch in launches(events)] == [steps[-1][0] if steps else None for _, steps in run]
    assert [launch.resumed_after for launch in launches(events)] == [
        after if i else None for i, (after, _) in enumerate(run)
    ]
