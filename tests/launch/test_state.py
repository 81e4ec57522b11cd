"""torchelastic's state in the store: JSON that only describes, with times by the clock of whoever keeps the store."""

import datetime
import json
import pickle

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from lockstep.launch.elastic.state import StateInJson, from_json, to_json

HOUR = 3600.0
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NONE = datetime.timedelta()
EARLY, LATE = _NodeDesc("early", 1, 0), _NodeDesc("late", 2, 1)


@pytest.fixture
def keeper():
    """As the machine that keeps the store sees the state."""
    return C10dRendezvousBackend(HashStore(), "run")


def full_state():
    state = _RendezvousState()
    state.round, state.complete, state.closed, state.deadline = 3, True, False, NOW
    state.participants = {LATE: 0, EARLY: 1}
    state.wait_list, state.redundancy_list = {_NodeDesc("new", 3, 0)}, {_NodeDesc("spare", 4, 7)}
    state.last_heartbeats = {EARLY: NOW, LATE: NOW}
    return state


def test_a_state_comes_back_whole_with_all_the_fields_that_this_pytorch_has():
    for state in (_RendezvousState(), full_state()):
        found = from_json(to_json(state, NONE), NONE)
        assert vars(found) == vars(state)
        assert list(found.participants) == list(state.participants)


def test_what_a_machine_writes_by_its_own_clock_others_read_by_theirs(keeper):
    told = []
    by = {name: datetime.timedelta(seconds=seconds) for name, seconds in (("early", -2 * HOUR), ("late", HOUR))}
    early, late = (StateInJson(keeper, by[name].total_seconds(), told.append) for name in by)
    state = _RendezvousState()
    state.participants = {LATE: 0}
    state.last_heartbeats = {LATE: NOW + by["late"]}
    state.deadline = NOW + by["late"]
    assert early.get_state() is None
    written, token, is_set = late.set_state(pickle.dumps(state))
    assert is_set
    assert pickle.loads(written).last_heartbeats == {LATE: NOW + by["late"]}
    assert from_json(keeper.get_state()[0], NONE).last_heartbeats == {LATE: NOW}
    found, token = early.get_state()
    state = pickle.loads(found)
    assert state.last_heartbeats == {LATE: NOW + by["early"]}
    assert state.deadline == NOW + by["early"]
    state.last_heartbeats[EARLY] = NOW + by["early"]
    assert early.set_state(pickle.dumps(state), token)[2]
    assert from_json(keeper.get_state()[0], NONE).last_heartbeats == {LATE: NOW, EARLY: NOW}
    state.round += 1
    assert not early.set_state(pickle.dumps(state), token)[2], "written by a token of the past"
    assert told == [[], ["late"]]


def damaged(**changes):
    return json.dumps({**json.loads(to_json(full_state(), NONE)), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(full_state()),
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        damaged(round="3"),
        damaged(complete=1),
        damaged(deadline=3),
        damaged(participants=[["host", 1, 0]]),
        damaged(participants=[[["host"], 1, 0, 0]]),
        damaged(wait_list=[["host", True, 0]]),
        damaged(last_heartbeats=[["host", 1, 0, "yesterday"]]),
    ],
    ids=range(12),
)
def test_anything_else_is_refused_and_not_executed(data):
    with pytest.raises(RendezvousStateError, match="is no state that a launcher of this lockstep has written"):
        from_json(data, NONE)
