"""Promises of the stages of a launch: its end is due at the first failure, and nothing postpones
it. Pure."""

import itertools
import math

import pytest

from lockstep._launch.stages import ECHO_S, KILL_S, Action, Event, Stage, State, transition

pytestmark = pytest.mark.timeout(30)
RANK = {Stage.RUNNING: 0, Stage.SAVING: 1, Stage.ECHO: 1, Stage.ENDING: 2, Stage.KILLED: 3}
END_S, SAVE_S, SAVED_S = 3.0, 300.0, 30.0


def after(*events, state=None):
    """The state, and the actions, after pairs of an event and its time."""
    state, actions = state or State(), []
    for event, now in events:
        state, action = transition(state, event, now, end_s=END_S, save_s=SAVE_S, saved_s=SAVED_S)
        actions.append(action)
    return state, actions


def check_next(state, event, now):
    """The state after an event, which has changed nothing that it may not change."""
    before = state
    state, [action] = after((event, now), state=before)
    assert RANK[state.stage] >= RANK[before.stage]
    if before.stage in (Stage.ENDING, Stage.KILLED) and action is not Action.KILL:
        assert (state.stage, state.until) == (before.stage, before.until)
        assert action in (None, Action.GIVE_UP)
    if state.stage is Stage.ECHO is before.stage:
        assert state.until == before.until
    if event is Event.ASKED_AGAIN:
        assert (state.stage, state.until, action) == (Stage.KILLED, now + KILL_S, Action.KILL)
    if event in (Event.FAILED, Event.ASKED_TO_END) and RANK[before.stage] < RANK[Stage.ENDING]:
        assert (state.stage, state.until, action) == (Stage.ENDING, now + END_S, Action.END)
    if event is Event.SAVED and before.stage is Stage.SAVING:
        assert state.until == min(before.until, now + SAVED_S)
    return state


def test_whatever_happens_a_launch_that_is_ending_is_not_given_more_time():
    for events in itertools.product(Event, repeat=4):
        state, now = State(), 0.0
        for event in events:
            now = state.until if event is Event.TIMED_OUT else min(now + 0.1, state.until)
            if now == math.inf:
                break  # nothing times out in this stage
            try:
                state = check_next(state, event, now)
            except AssertionError as error:
                raise AssertionError(f"{event.name} of {[each.name for each in events]}, from {state}") from error


def test_an_echo_waits_for_its_cause_and_then_all_end():
    state, actions = after((Event.ECHOED, 1.0), (Event.ECHOED, 1.4), (Event.SAVED, 1.45))
    assert (state.stage, state.until, actions) == (Stage.ECHO, 1.0 + ECHO_S, [None, None, None])
    state, actions = after((Event.TIMED_OUT, state.until), state=state)
    assert (state.stage, actions) == (Stage.ENDING, [Action.END])


def test_what_does_not_end_is_killed_and_then_given_up():
    state, actions = after((Event.FAILED, 0.0), (Event.TIMED_OUT, END_S), (Event.TIMED_OUT, END_S + KILL_S))
    assert (state.stage, actions) == (Stage.KILLED, [Action.END, Action.KILL, Action.GIVE_UP])


def test_a_run_that_is_asked_to_save_has_its_time_and_less_once_one_rank_has_saved():
    state, actions = after((Event.ASKED_TO_SAVE, 0.0))
    assert (state.stage, state.until, state.is_saving, actions) == (Stage.SAVING, SAVE_S, True, [Action.SAVE])
    assert after((Event.SAVED, 10.0), state=state)[0].until == 10.0 + SAVED_S
    assert after((Event.SAVED, SAVE_S - 1), state=state)[0].until == SAVE_S
    assert after((Event.TIMED_OUT, SAVE_S), state=state)[1] == [Action.KILL]
