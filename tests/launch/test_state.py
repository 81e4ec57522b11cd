"""torchelastic's state on its way to the store: with times by the clock of whoever keeps that."""

import datetime
import pickle

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from lockstep._launch.elastic.state import StateByOneClock

HOUR = 3600.0
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EARLY, LATE = _NodeDesc("early", 1, 0), _NodeDesc("late", 2, 1)


@pytest.fixture
def keeper():
    """As the machine that keeps the store sees the state."""
    return C10dRendezvousBackend(HashStore(), "run")


def test_all_times_of_torchelastics_state_are_shifted():
    times = {name for name, kind in _RendezvousState.__annotations__.items() if "datetime" in str(kind)}
    assert times == {"deadline", "last_heartbeats"}


def test_what_a_machine_writes_by_its_own_clock_others_read_by_theirs(keeper):
    told = []
    by = {name: datetime.timedelta(seconds=seconds) for name, seconds in (("early", -2 * HOUR), ("late", HOUR))}
    early, late = (StateByOneClock(keeper, by[name].total_seconds(), told.append) for name in by)
    state = _RendezvousState()
    state.participants = {LATE: 0}
    state.last_heartbeats = {LATE: NOW + by["late"]}
    state.deadline = NOW + by["late"]
    assert early.get_state() is None
    written, token, is_set = late.set_state(pickle.dumps(state))
    assert is_set
    assert pickle.loads(written).last_heartbeats == {LATE: NOW + by["late"]}
    assert pickle.loads(keeper.get_state()[0]).last_heartbeats == {LATE: NOW}
    found, token = early.get_state()
    state = pickle.loads(found)
    assert state.last_heartbeats == {LATE: NOW + by["early"]}
    assert state.deadline == NOW + by["early"]
    state.last_heartbeats[EARLY] = NOW + by["early"]
    assert early.set_state(pickle.dumps(state), token)[2]
    assert pickle.loads(keeper.get_state()[0]).last_heartbeats == {LATE: NOW, EARLY: NOW}
    state.round += 1
    assert not early.set_state(pickle.dumps(state), token)[2], "written by a token of the past"
    assert told == [[], ["late"]]
