"""A run's history has each step once, of the last launch that took it: any launches, killed and
resumed anywhere. And a reader of what is new in it gets each event once."""

import json

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lockstep._events.history import Tail, has_new_checkpoint, history, launches

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


OLD = b'{"event": "start", "is": "old"}\nnoise {"event": "x"}\n{"event": "step", "step": 1}\n{"event": "end"}\n'
NEW = b'{"event": "start"}\nnoise {"event": "x"}\n{"event": "step"}\n'


def events_in(text):
    """Those of whole lines; of noise, no part is an event."""
    lines = text.split(b"\n")[:-1]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def test_wherever_a_reader_of_what_is_new_meets_the_writer_each_event_comes_once(tmp_path):
    for cut in range(len(NEW) + 1):
        path, known = tmp_path / str(cut), events_in(NEW[:cut])
        path.write_bytes(NEW[:cut])
        tail = Tail(path)
        assert tail.read() == (known, True), cut
        with path.open("ab") as file:
            file.write(NEW[cut:])
        assert tail.read() == (events_in(NEW)[len(known) :], False), cut
        assert tail.read() == ([], False), cut


@pytest.mark.parametrize("how", ["moved away", "truncated"])
def test_a_new_log_is_read_from_its_beginning_wherever_the_old_one_had_ended(tmp_path, how):
    for cut in range(1, len(OLD) + 1):
        path = tmp_path / str(cut)
        path.write_bytes(OLD[:cut])
        tail = Tail(path)
        tail.read()
        if how == "moved away":
            path.rename(tmp_path / "old")
        new = NEW if how == "moved away" else NEW[: cut - 1]  # truncation is seen by the size alone
        path.write_bytes(new)
        known = events_in(new)
        assert tail.read() == (known, True), cut
        with path.open("ab") as file:
            file.write(NEW[len(new) :])
        assert tail.read() == (events_in(NEW)[len(known) :], False), cut


def test_the_moment_to_kill_a_run_is_behind_a_checkpoint_and_not_behind_its_best_weights(tmp_path):
    file = tmp_path / "events.jsonl"
    tail = Tail(file)
    assert not has_new_checkpoint(tail)
    for kind, is_one in (("weights", False), ("checkpoint", True), ("weights", False)):
        with file.open("a") as log:
            log.write(json.dumps({"event": "checkpoint", "step": 1, "kind": kind}) + "\n")
        assert has_new_checkpoint(tail) == is_one
    assert not has_new_checkpoint(tail), "it is no longer new"
