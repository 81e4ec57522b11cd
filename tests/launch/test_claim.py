"""A node's number is free again when the launcher that had it is known to have ended."""

import dataclasses
import subprocess
import sys

import pytest
from launch_helpers import is_running, until

from lockstep.launch.elastic.places import Machine


@pytest.fixture
def other():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait(10)


HERE = Machine.here("127.0.0.1", 1, keeps_store=False)


@pytest.fixture
def claim(other):
    return dataclasses.replace(HERE, pid=other.pid, token="other")


def test_a_launcher_that_runs_has_not_ended(claim):
    assert not HERE.has_ended(HERE)
    assert not claim.has_ended(HERE)


def test_one_that_was_killed_has_ended_also_while_nobody_has_waited_for_it(other, claim):
    other.kill()
    until(lambda: not is_running(other.pid))
    assert claim.has_ended(HERE)
    other.wait(10)
    assert claim.has_ended(HERE)


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"pid_namespace": "elsewhere"}, {"pid_namespace": ""}])
def test_of_a_launcher_whose_processes_cannot_be_seen_from_here_nothing_is_known(other, claim, elsewhere):
    other.kill()
    other.wait(10)
    assert not dataclasses.replace(claim, **elsewhere).has_ended(HERE)
