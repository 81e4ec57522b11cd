"""Promises of a replay's verdict: EQUAL only if every step that was asked for was compared, and is
bit-identical. Pure."""

from types import SimpleNamespace

import pytest

from lockstep._events.history import launches
from lockstep._tools.replay.digests import gather, row
from lockstep._tools.replay.record import OF_BITS, RunRecord
from lockstep._tools.replay.verdict import compare_with_run
from lockstep._tools.verify.trace.lines import exact
from lockstep._tools.verify.trace.traced_run import ShardKey

pytestmark = pytest.mark.timeout(20)
START = {"event": "start", "launch": "a", "after": 0, "every": 1, "shards": 1, "exact": True}
HERE = {"torch": "2", "device": "cpu", "device_name": None, "threads": 1, "script_sha256": "0" * 64}


def journal(losses, state="same", gradient="g", samples="samples"):
    """Of a run with these losses, by step."""
    steps = [
        {
            "event": "steps",
            "last": step,
            "shards": row(ShardKey(step, 0, 0, 0), samples, "-", (exact(loss),)),
            "gradients": [[gradient, exact(1.0)]],
            "state": {"model": state},
        }
        for step, loss in losses.items()
    ]
    return gather([[START, *steps]])


def judge(run, replay, *, first=1, last=3, is_exact=True, **start):
    record = SimpleNamespace(start_of=lambda step: {**HERE, **start}, birth=SimpleNamespace(exact=is_exact))
    request = SimpleNamespace(first=first, last=last, after=0, steps=range(first, last + 1))
    return compare_with_run(request, record, HERE, run, replay)


RUN = {1: 1.0, 2: 2.0, 3: 3.0}


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_step_that_only_one_of_them_has_is_never_called_equal(missing):
    part = {step: loss for step, loss in RUN.items() if step != missing}
    assert judge(journal(RUN), journal(RUN)).status == "equal"
    assert judge(journal(RUN), journal(part)).status == judge(journal(part), journal(RUN)).status == "unknown"
    assert judge(None, journal(RUN)).status == "unknown"


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_bit_of_any_step_makes_it_different(step):
    other = {**RUN, step: RUN[step] * (1 + 2**-52)}
    assert judge(journal(RUN), journal(other)).status == "different"
    assert judge(journal(RUN), journal(RUN, state="other")).status == "different"
    assert judge(journal(RUN), journal(other), is_exact=False).status == "equal up to rounding"
    assert judge(journal(RUN), journal({**RUN, step: 9.0}), is_exact=False).status == "different"


def test_up_to_rounding_gradients_and_state_differ_and_samples_do_not():
    other = {"state": journal(RUN, state="other"), "gradient": journal(RUN, gradient="h")}
    for found in other.values():
        assert judge(journal(RUN), found, is_exact=False).status == "equal up to rounding"
        assert judge(journal(RUN), found).status == "different"
    for is_exact in (False, True):
        assert judge(journal(RUN), journal(RUN, samples="others"), is_exact=is_exact).status == "different"


LAUNCHES = [  # killed in step 6, resumed behind 4, and behind 2 since a checkpoint was damaged
    *({"event": "start", "launch": 0}, *({"event": "step", "step": step} for step in range(1, 7))),
    *({"event": "start", "launch": 1}, {"event": "resume", "step": 4}, {"event": "step", "step": 5}),
    *({"event": "start", "launch": 2}, {"event": "resume", "step": 2}, {"event": "step", "step": 3}),
]


@pytest.mark.parametrize("num_events", [7, 8, 9, 10, 11, 12, 13])
def test_a_step_is_compared_with_the_last_launch_that_took_it(num_events):
    known = launches(LAUNCHES[:num_events])
    record = RunRecord(path=None, birth=None, command=None, launches=tuple(known), last_step=6)
    for step in range(1, 7):
        newest = max(launch.start["launch"] for launch in known if (launch.resumed_after or 0) < step)
        assert record.start_of(step)["launch"] == newest
    asked = []
    found = SimpleNamespace(start_of=lambda step: asked.append(step) or HERE, birth=SimpleNamespace(exact=True))
    request = SimpleNamespace(first=2, last=3, after=0, steps=range(2, 4))
    assert compare_with_run(request, found, HERE, journal(RUN), journal(RUN)).status == "equal"
    assert asked == [2]


@pytest.mark.parametrize("name", [*OF_BITS, "script_sha256"])
def test_what_is_not_as_it_was_is_told_whatever_the_result(name):
    same, other = (judge(journal(RUN), journal(RUN), **more) for more in ({}, {name: "other"}))
    assert (same.status, other.status) == ("equal", "equal")
    assert len(other.lines) == len(same.lines) + (HERE[name] is not None)
