"""The limit of open files is raised where there are many ranks, and no further than needed."""

import resource

import pytest

from lockstep._base.errors import ConfigError
from lockstep._world.machine.open_files import allow_connections


@pytest.fixture
def limits():
    """The limits of this process, of which the lower one is 512 meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield lambda: resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_may_have_a_connection_to_every_rank_and_files_of_its_own(limits):
    allow_connections(8)
    assert limits()[0] == 512
    allow_connections(400)
    assert 512 < limits()[0] < 1000
    allow_connections(1000)
    assert 1000 < limits()[0] < 1500


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] == resource.RLIM_INFINITY, reason="there is no limit")
def test_a_limit_that_is_not_this_users_is_named(limits):
    hard = limits()[1]
    with pytest.raises(ConfigError, match=rf"limit is {hard}\b.*ulimit"):
        allow_connections(hard)
    assert limits()[0] == 512
