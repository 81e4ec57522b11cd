"""A node's number is free again when the launcher that had it is known to have ended."""

import dataclasses
import subprocess
import sys

import pytest
from launch_helpers import is_running, until

from lockstep.launch.elastic.static_rendezvous import Claim


@pytest.fixture
def other():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait(10)


@pytest.fixture
def claim(other):
    return dataclasses.replace(Claim.of_this_process(), pid=other.pid, token="other")


def test_a_launcher_that_runs_has_not_ended(claim):
    assert not Claim.of_this_process().has_ended(Claim.of_this_process())
    assert not claim.has_ended(Claim.of_this_process())


def test_one_that_was_killed_has_ended_also_while_nobody_has_waited_for_it(other, claim):
    other.kill()
    until(lambda: not is_running(other.pid))
    assert claim.has_ended(Claim.of_this_process())
    other.wait(10)
    assert claim.has_ended(Claim.of_this_process())


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"pid_namespace": "elsewhere"}, {"pid_namespace": ""}])
def test_of_a_launcher_whose_processes_cannot_be_seen_from_here_nothing_is_known(other, claim, elsewhere):
    other.kill()
    other.wait(10)
    assert not dataclasses.replace(claim, **elsewhere).has_ended(Claim.of_this_process())
