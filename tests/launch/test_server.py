"""The launcher's handle on a fork server: whatever it forked is known, and ends with it."""

import contextlib
import os
import select
import signal
from pathlib import Path

import psutil
import pytest
from launch_helpers import is_running, until

from lockstep._base.errors import LaunchError
from lockstep._launch.messages import Receiver
from lockstep._launch.server import ForkServer

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def server():
    with contextlib.closing(ForkServer.start()) as server:
        until(lambda: "ready" in server.receive())
        yield server


@pytest.fixture
def start_stuck(server, tmp_path):
    """``start_stuck(rank)``: the pid of a worker that waits for its spec, in vain; it has come so
    far."""
    with contextlib.ExitStack() as stack, Path(os.devnull).open("r+b") as nothing:

        def open_once_read(fifo):
            with contextlib.suppress(OSError):  # nobody reads it yet
                return stack.enter_context(os.fdopen(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "wb"))

        def start(rank):
            fifo = tmp_path / f"spec-{rank}"
            os.mkfifo(fifo)
            receiver = stack.enter_context(contextlib.closing(Receiver()))
            server.start_worker(str(fifo), rank, [nothing.fileno()] * 3 + [receiver.worker_fd])
            receiver.handed_over()
            until(lambda: open_once_read(fifo))
            receiver.read()
            return receiver.messages.pid

        yield start


@pytest.mark.long
def test_workers_say_who_they_are_before_anything_else_and_closing_ends_them(server, start_stuck):
    told = {start_stuck(rank) for rank in range(3)}
    children = {int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()}
    assert told == children
    assert len(children) == 3
    server.close()
    until(lambda: not any(map(is_running, children)))
    server.close()


@pytest.mark.long
def test_a_lost_server_is_told_by_the_next_message_after_all_that_it_had_said(server, start_stuck):
    worker = start_stuck(0)
    os.kill(worker, signal.SIGKILL)
    # its last words of that worker wait to be read
    until(lambda: select.select([server], [], [], 0)[0])
    os.kill(server.pid, signal.SIGSTOP)
    server.start_worker("not read", 1, [])
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not is_running(server.pid))
    server.start_worker("not even sent", 2, [])
    assert server.receive()["status"] == -signal.SIGKILL
    with pytest.raises(LaunchError, match="SIGKILL"):
        server.receive()
    assert not server.is_alive()


def environ_of_server():
    """They are there long before the server has imported torch, for which nobody need wait."""
    with contextlib.closing(ForkServer.start()) as server:
        process = psutil.Process(server.pid)
        # The kernel closes the pipe on which subprocess waits before it notes where they are.
        until(process.environ)
        return process.environ()


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "active"}])
def test_threads_of_openmp_that_wait_sleep_unless_the_user_said_how_they_are_to_wait(monkeypatch, given):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environ = environ_of_server()
    assert {name: environ[name] for name in names if name in environ} == (
        given or {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    )


@pytest.mark.parametrize(("given", "seed"), [(None, "0"), ("7", "7")])
def test_texts_hash_alike_in_every_launch_so_that_sets_of_them_keep_their_order(monkeypatch, given, seed):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONHASHSEED", given)
    assert environ_of_server()["PYTHONHASHSEED"] == seed
