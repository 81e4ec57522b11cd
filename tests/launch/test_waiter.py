"""A wait for other machines has an end."""

import pytest
from codes import raises

from lockstep._base.errors import LaunchError
from lockstep._launch.elastic.waiter import Stop, Waiter

pytestmark = pytest.mark.timeout(20)


def test_it_ends_with_its_time():
    with raises(LaunchError, "rendezvous-timeout") as caught:
        Waiter("host0:29500", 0, Stop(), "").pause("node 1")
    assert "0 s at host0:29500 for node 1" in str(caught.value)
