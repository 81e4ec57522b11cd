"""A wait for other machines has an end."""

import pytest

from lockstep._base.errors import LaunchError
from lockstep._launch.elastic.waiter import Stop, Waiter

pytestmark = pytest.mark.timeout(20)


def test_it_ends_with_its_time():
    with pytest.raises(LaunchError, match="timed out: waited 0 s at host0:29500 for node 1"):
        Waiter("host0:29500", 0, Stop(), "").pause("node 1")
