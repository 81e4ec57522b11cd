"""A process is asked for its stack with a signal, as often as it joins a run, and lives on whatever it does then."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from lockstep.base.stopping import catches
from lockstep.tools.explain.stack_request import IN_C_SIGNAL, SIGNAL, StackResponder, request_stack

BUSY = """
    import ctypes, os, re, sys, threading, time
    from pathlib import Path
    from lockstep.tools.explain.stack_request import StackResponder

    def deeper(n):
        return n and deeper(n - 1)

    def work():
        while True:
            [value for value in (deeper(12) for _ in range(3))]
            exec("def made(x): return x\\nmade(1)")

    def in_c():
        sum(range(10**12))

    def in_open():
        os.mkfifo("pipe")
        print(ctypes.PyDLL(None).open(b"pipe", os.O_RDONLY) >= 0, flush=True)

    answering = StackResponder(Path("stacks"))
    threading.Thread(target=work, daemon=True).start()
    print(answering.where()["stack_fd"], os.getpid(), flush=True)
    {doing}()
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that does something, and returns its record."""
    started = []

    def start(doing):
        script = textwrap.dedent(BUSY.format(doing=doing))
        process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        started.append(process)
        fd, pid = map(int, process.stdout.readline().split())
        return process, {"stack_file": str(tmp_path / "stacks"), "stack_fd": fd, "pid": pid}

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_answers_each_time_that_it_has_joined_and_lives_on_in_between(tmp_path):
    for name in ("first", "second"):
        answering = StackResponder(tmp_path / f"{name}.stacks")
        record = {**answering.where(), "pid": os.getpid()}
        frames = request_stack(record)
        assert any(file == __file__ for file, _, _ in frames)
        answering.close()
        assert not catches(os.getpid(), SIGNAL)
        assert not catches(os.getpid(), IN_C_SIGNAL)
        assert request_stack(record) is None
        for number in (SIGNAL, IN_C_SIGNAL):
            os.kill(os.getpid(), number)  # one that was on its way


def test_what_is_opened_under_the_number_of_the_closed_file_is_not_written_to(tmp_path):
    StackResponder(tmp_path / "stacks").close()
    with (tmp_path / "mine").open("w"):
        for number in (SIGNAL, IN_C_SIGNAL):
            os.kill(os.getpid(), number)
    assert (tmp_path / "mine").read_text() == ""


def test_one_that_another_thread_has_made_never_answers_for_the_main_thread_would(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(StackResponder(tmp_path / "stacks")))
    thread.start()
    thread.join()
    assert found[0].where() == {}
    found[0].close()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_process_that_runs_python_code_in_two_threads_outlives_a_thousand_questions(start):
    process, record = start("work")
    deadline = time.monotonic() + 60
    while not {name for _, _, name in request_stack(record) or ()} >= {"work", "<module>"}:  # it may only just have begun
        assert time.monotonic() < deadline
    for _ in range(1000):  # with the stacks of all threads, from the signal's handler, it was gone after a hundred
        os.kill(record["pid"], SIGNAL)
        time.sleep(0.002)
    assert process.poll() is None
    assert request_stack(record)


@pytest.mark.timeout(120)
def test_one_in_c_code_that_holds_the_interpreter_lock_answers_as_well(start):
    process, record = start("in_c")
    deadline = time.monotonic() + 60
    while (frames := request_stack(record) or [("", 0, "")])[0][2] != "in_c":
        assert time.monotonic() < deadline, frames
    assert process.poll() is None
    assert "Stack (most recent call first)" in Path(record["stack_file"]).read_text()  # Python cannot have answered


@pytest.mark.timeout(120)
def test_a_system_call_in_c_code_is_not_interrupted_by_the_question(start, tmp_path):
    process, record = start("in_open")
    deadline = time.monotonic() + 60
    while "Stack (most recent call first)" not in Path(record["stack_file"]).read_text():  # it has come to the call
        assert time.monotonic() < deadline
        assert request_stack(record), process.stdout.readline()
    with (tmp_path / "pipe").open("w"):
        assert process.stdout.readline() == "True\n"
