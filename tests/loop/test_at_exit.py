"""As a process exits, its run is closed before what the script's libraries have opened."""

import atexit
import os

import pytest

from lockstep._loop.at_exit import AtExit

pytestmark = pytest.mark.timeout(30)


def order_at_exit(work):
    """What exit handlers have written in a process that runs ``work(at_exit, note)`` and ends."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            atexit._clear()  # the handlers of pytest
            at_exit = AtExit()
            work(at_exit, lambda text: lambda: os.write(writer, text.encode()))
            atexit._run_exitfuncs()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        written = file.read()
    os.waitpid(pid, 0)
    return written


def test_a_run_closes_before_what_was_opened_until_its_first_pass():
    def work(at_exit, note):
        at_exit.call(note("run "))
        atexit.register(note("tracker "))
        at_exit.begin_pass(0, 1, 1, 0)
        at_exit.begin_pass(1, 1, 1, 0)

    assert order_at_exit(work) == "run tracker "


def test_a_run_that_was_closed_is_not_closed_again():
    def work(at_exit, note):
        at_exit.call(note("run "))
        at_exit.begin_pass(0, 1, 1, 0)
        at_exit.cancel()
        at_exit.begin_pass(1, 1, 1, 0)

    assert order_at_exit(work) == ""
