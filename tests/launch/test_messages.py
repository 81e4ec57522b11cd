"""What workers tell their launcher: all that they got to say, and only what they said
themselves."""

import contextlib
import os
import signal
import threading

import pytest
from launch_helpers import is_running

from lockstep._launch.failures import End, Failure
from lockstep._launch.messages import Receiver, Sender, WorkerMessages

pytestmark = pytest.mark.timeout(40)

FAILURE = Failure(rank=3, host="here", time_s=1.5, kind="ValueError", message="böm\n", text="x\ud800" * 10, exit_status=7)


@pytest.fixture
def receiver():
    with contextlib.closing(Receiver()) as receiver:
        yield receiver


@pytest.fixture
def sender(receiver):
    yield Sender(receiver.worker_fd)
    with contextlib.suppress(OSError):  # a test has closed it
        receiver.handed_over()


def test_every_field_comes_as_it_was_sent(receiver, sender):
    assert sender.send(watches=[15, 10])
    sender.send(failure=FAILURE)
    sender.send(stopped_with=75)
    sender.send(end=End(time_s=2.5, how="it called sys.exit()"))
    assert receiver.read()
    assert receiver.messages == WorkerMessages(
        pid=os.getpid(),
        watches=[15, 10],
        failure=FAILURE,
        stopped_with=75,
        end=End(time_s=2.5, how="it called sys.exit()"),
    )


def test_a_failure_larger_than_the_pipe_comes_whole(receiver, sender):
    large = Failure(**{**vars(FAILURE), "text": "0123456789" * 100_000})
    thread = threading.Thread(target=sender.send, kwargs={"failure": large})
    thread.start()
    while receiver.messages.failure is None:
        receiver.read()
    thread.join()
    assert receiver.messages.failure == large


def test_what_a_worker_was_killed_in_the_middle_of_is_left_out_and_what_it_said_before_is_not(receiver, sender):
    os.write(receiver.worker_fd, b'\n{"failure": {"rank": 3, "host"')
    receiver.handed_over()
    receiver.read()
    assert not receiver.read()
    assert receiver.messages == WorkerMessages(pid=os.getpid())


def test_a_process_that_the_worker_forks_tells_nothing(receiver, sender, monkeypatch):
    receiver.read()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        assert not sender.send(stopped_with=75)
    receiver.read()
    assert receiver.messages == WorkerMessages(pid=os.getpid())


# In workers.


@pytest.mark.parametrize("statement", ["raise ValueError('boom')", "sys.exit('words')", "pass"])
def test_a_process_that_a_script_forked_ends_as_under_python_and_is_not_the_rank(run_warm, statement):
    ended = run_warm(
        f"""
        import os, sys, time
        pid = os.fork()
        if pid == 0:
            {statement}
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            time.sleep(0.2)
        """,
        nproc=1,
    )
    assert not ended.outcome.failures
    assert ended.out == ("0\n" if statement == "pass" else "1\n")
    assert ("ValueError: boom" in ended.err) == ("ValueError" in statement)
    assert ("words" in ended.err) == ("words" in statement)


def test_a_process_that_a_worker_has_forked_keeps_no_launch_waiting(run_warm, tmp_path):
    # By a helper thread: what the main thread forks dies with the worker (`guard`). And not before
    # it has a session of its own: what is in the worker's is ended with that.
    ended = run_warm(
        """
        import os, pathlib, threading, time
        reader, writer = os.pipe()
        def leave():
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.write(writer, b"!")
                time.sleep(10_000)
            pathlib.Path("child").write_text(str(pid))
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        os.read(reader, 1)
        """,
        nproc=1,
    )
    child = int((tmp_path / "child").read_text())
    assert is_running(child)
    os.kill(child, signal.SIGKILL)
    assert not ended.outcome.failures
