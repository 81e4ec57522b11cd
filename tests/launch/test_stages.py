"""What follows from what happens to a launch, at every stage of it."""

import math

import pytest

from lockstep.launch.stages import ECHO_S, KILL_S, Action, Event, Stage, State, transition

NOW, END_S, SAVE_S, SAVED_S = 1000.0, 3.0, 600.0, 30.0

# At each stage, reached some time ago: what each event leads to (None: nothing changes, and nothing is done), and for how
# long the next stage may last. What cannot happen is left out: nothing times out while all run.
TABLE = [
    (Stage.RUNNING, Event.FAILED, Stage.ENDING, END_S, Action.END),
    (Stage.RUNNING, Event.ECHOED, Stage.ECHO, ECHO_S, None),
    (Stage.RUNNING, Event.SAVED, Stage.SAVING, SAVED_S, None),
    (Stage.RUNNING, Event.ASKED_TO_SAVE, Stage.SAVING, SAVE_S, Action.SAVE),
    (Stage.RUNNING, Event.ASKED_TO_END, Stage.ENDING, END_S, Action.END),
    (Stage.RUNNING, Event.ASKED_AGAIN, Stage.KILLED, KILL_S, Action.KILL),
    (Stage.ECHO, Event.FAILED, Stage.ENDING, END_S, Action.END),
    (Stage.ECHO, Event.ECHOED, None, None, None),
    (Stage.ECHO, Event.SAVED, None, None, None),
    (Stage.ECHO, Event.ASKED_TO_SAVE, None, None, Action.SAVE),
    (Stage.ECHO, Event.ASKED_TO_END, Stage.ENDING, END_S, Action.END),
    (Stage.ECHO, Event.ASKED_AGAIN, Stage.KILLED, KILL_S, Action.KILL),
    (Stage.ECHO, Event.TIMED_OUT, Stage.ENDING, END_S, Action.END),
    (Stage.SAVING, Event.FAILED, Stage.ENDING, END_S, Action.END),
    (Stage.SAVING, Event.ECHOED, Stage.ECHO, ECHO_S, None),
    (Stage.SAVING, Event.SAVED, Stage.SAVING, SAVED_S, None),
    (Stage.SAVING, Event.ASKED_TO_SAVE, Stage.SAVING, SAVE_S, Action.SAVE),
    (Stage.SAVING, Event.ASKED_TO_END, Stage.ENDING, END_S, Action.END),
    (Stage.SAVING, Event.ASKED_AGAIN, Stage.KILLED, KILL_S, Action.KILL),
    (Stage.SAVING, Event.TIMED_OUT, Stage.KILLED, KILL_S, Action.KILL),
    (Stage.ENDING, Event.FAILED, None, None, None),
    (Stage.ENDING, Event.ECHOED, None, None, None),
    (Stage.ENDING, Event.SAVED, None, None, None),
    (Stage.ENDING, Event.ASKED_TO_SAVE, None, None, None),
    (Stage.ENDING, Event.ASKED_TO_END, None, None, None),
    (Stage.ENDING, Event.ASKED_AGAIN, Stage.KILLED, KILL_S, Action.KILL),
    (Stage.ENDING, Event.TIMED_OUT, Stage.KILLED, KILL_S, Action.KILL),
    (Stage.KILLED, Event.FAILED, None, None, None),
    (Stage.KILLED, Event.ECHOED, None, None, None),
    (Stage.KILLED, Event.SAVED, None, None, None),
    (Stage.KILLED, Event.ASKED_TO_SAVE, None, None, None),
    (Stage.KILLED, Event.ASKED_TO_END, None, None, None),
    (Stage.KILLED, Event.ASKED_AGAIN, Stage.KILLED, KILL_S, Action.KILL),
    (Stage.KILLED, Event.TIMED_OUT, None, None, Action.GIVE_UP),
]

UNTIL = {
    Stage.RUNNING: math.inf,
    Stage.ECHO: NOW + 0.1,
    Stage.SAVING: NOW + 100,
    Stage.ENDING: NOW + 1,
    Stage.KILLED: NOW + 1,
}


def after(state, event):
    return transition(state, event, NOW, end_s=END_S, save_s=SAVE_S, saved_s=SAVED_S)


@pytest.mark.parametrize("is_saving", [False, True])
@pytest.mark.parametrize(("stage", "event", "following", "lasts_s", "action"), TABLE)
def test_each_event_leads_to_its_stage_and_has_its_action_done(stage, event, following, lasts_s, action, is_saving):
    before = State(stage=stage, until=UNTIL[stage], is_saving=is_saving)
    state, done = after(before, event)
    assert (state.stage, done) == (following or stage, action)
    assert state.until == (before.until if lasts_s is None else NOW + lasts_s)
    assert state.is_saving == (is_saving or event in (Event.SAVED, Event.ASKED_TO_SAVE))
    assert state.was_cut_short == (state.stage in (Stage.ENDING, Stage.KILLED))


def test_the_table_has_every_event_at_every_stage():
    pairs = [row[:2] for row in TABLE]
    assert len(set(pairs)) == len(pairs) == len(Stage) * len(Event) - 1  # nothing times out while all run


@pytest.mark.parametrize(
    ("left_s", "event", "stage"),
    [(ECHO_S / 2, Event.ECHOED, Stage.SAVING), (SAVED_S / 2, Event.SAVED, Stage.SAVING)],
)
def test_what_would_give_workers_that_save_more_time_than_they_have_left_gives_them_none(left_s, event, stage):
    state, _ = after(State(stage=Stage.SAVING, until=NOW + left_s, is_saving=True), event)
    assert (state.stage, state.until) == (stage, NOW + left_s)
