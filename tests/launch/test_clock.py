"""Machines whose clocks differ see each other alive, and only then."""

import datetime
import pickle

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _RendezvousState

from lockstep.launch.elastic.clock import SameClock

HOUR = 3600.0


@pytest.fixture
def keeper():
    """As the machine that keeps the store sees the state."""
    return C10dRendezvousBackend(HashStore(), "run")


def test_what_a_machine_writes_by_its_own_clock_others_read_by_theirs(keeper):
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    by = {name: datetime.timedelta(seconds=seconds) for name, seconds in (("early", -2 * HOUR), ("late", HOUR))}
    early, late = (SameClock(keeper, by[name].total_seconds()) for name in by)
    state = _RendezvousState()
    state.last_heartbeats = {"late": now + by["late"]}
    state.deadline = now + by["late"]
    written, token, is_set = late.set_state(pickle.dumps(state))
    assert is_set
    assert pickle.loads(written).last_heartbeats == {"late": now + by["late"]}
    assert pickle.loads(keeper.get_state()[0]).last_heartbeats == {"late": now}
    found, token = early.get_state()
    state = pickle.loads(found)
    assert state.last_heartbeats == {"late": now + by["early"]}
    assert state.deadline == now + by["early"]
    state.last_heartbeats["early"] = now + by["early"]
    assert early.set_state(pickle.dumps(state), token)[2]
    assert pickle.loads(keeper.get_state()[0]).last_heartbeats == {"late": now, "early": now}
    state.round += 1
    assert not early.set_state(pickle.dumps(state), token)[2], "written by a token of the past"
