"""A wait for other machines is told: at once, then with what to look at, and then every ten seconds."""

import pytest

from lockstep.base.errors import LaunchError
from lockstep.launch.elastic import waiter
from lockstep.launch.elastic.waiter import Stop, Waiter

pytestmark = pytest.mark.timeout(20)


def test_what_to_look_at_is_said_once_while_it_waits_and_again_when_it_lacked_peers(monkeypatch, capfd):
    monkeypatch.setattr(waiter, "_TELL_AFTER_S", 0.0)
    monkeypatch.setattr(waiter, "_TELL_EVERY_S", 0.0)
    one = Waiter("host0:29500", 60, Stop(), "Is node 1 there?")
    for _ in range(3):
        one.tell("node 1")
    told = capfd.readouterr().err.splitlines()
    assert all(line.startswith("lockstep: waiting at host0:29500 for node 1 (0 s so far, until ") for line in told)
    assert [line.endswith(", 60 s in all). Ctrl-C ends it") for line in told] == [True, False, True]
    assert ["Is node 1 there?" in line for line in told] == [False, True, False]
    assert str(one.timed_out()) == "timed out: waited 60 s at host0:29500 for node 1. Is node 1 there?"


def test_it_ends_with_its_time():
    with pytest.raises(LaunchError, match="timed out: waited 0 s at host0:29500 for node 1"):
        Waiter("host0:29500", 0, Stop(), "").pause("node 1")
