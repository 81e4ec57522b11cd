"""Promises of a launcher's signals: each request counts once, and the caller's handlers are
restored."""

import os
import select
import signal

import pytest

from lockstep._base import stopping
from lockstep._launch.signals import STOPPING, Interrupts

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def handled():
    """Handlers of the test's own, which must be there again behind each context."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    mine = {number: (lambda *_: None) for number in STOPPING}
    for number, handler in mine.items():
        signal.signal(number, handler)
    yield
    found = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert [number for number in STOPPING if found[number] not in (mine[number], signal.SIG_IGN)] == []


def is_readable(interrupts):
    return bool(select.select([interrupts], [], [], 0)[0])


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_is_noted_and_wakes_the_loop_until_it_is_cleared(number):
    with Interrupts() as interrupts:
        assert not is_readable(interrupts)
        os.kill(os.getpid(), number)
        assert (interrupts.received, is_readable(interrupts)) == ([number], True)
        interrupts.clear()
        assert not is_readable(interrupts)


@pytest.mark.parametrize("number", STOPPING)
def test_what_comes_twice_at_once_is_one_request_and_later_it_is_a_second(number, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with Interrupts() as interrupts:
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert interrupts.received == [number]
        now += stopping.SAME_S + 0.1
        os.kill(os.getpid(), number)
        assert interrupts.received == [number, number]


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
    assert (interrupts.received, signal.getsignal(signal.SIGHUP)) == ([], signal.SIG_IGN)


def test_what_was_told_before_is_seen_and_what_is_told_afterwards_is_not():
    interrupts = Interrupts()
    interrupts.tell(signal.SIGTERM)
    with interrupts:
        assert is_readable(interrupts)
    interrupts.tell(signal.SIGUSR1)
    assert interrupts.received == [signal.SIGTERM]
