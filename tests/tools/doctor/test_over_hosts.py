"""Promises of the checks that several machines make together."""

import pytest
from codes import raises

from lockstep._base.config import RunConfig
from lockstep._base.errors import PeerError
from lockstep._tools.doctor import over_hosts
from lockstep._tools.doctor.finding import Situation

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize(("run_s", "waited_s"), [(5.0, 5.0), (600.0, 60.0)], ids=["the run's limit", "its own limit"])
def test_other_processes_are_waited_for_as_long_as_the_shorter_limit_says(monkeypatch, run_s, waited_s):
    # in the place of a rendezvous to which nobody else comes, and which takes so long
    def come_alone(timeout_s):
        raise PeerError(f"after {timeout_s} s", code=f"alone-for-{timeout_s:g}")

    monkeypatch.setattr(over_hosts.exchange, "join", come_alone)
    with raises(PeerError, f"alone-for-{waited_s:g}"):
        over_hosts.compare_hosts(Situation(num_processes=2, config=RunConfig(timeout_s=run_s)), [])
