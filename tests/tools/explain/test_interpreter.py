"""Whether C code holds the lock of a process's interpreter, and which line has called it; in a real
process."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from lockstep._tools.explain.interpreter import StackFile, holds_lock, parse_stacks, stack_now

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def process_that(tmp_path):
    """``process_that(act)``: the record of a process whose main thread calls this, while another
    thread looks now and then."""
    pids = []

    def start(act):
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                file, main = StackFile(tmp_path / "boxes" / "rank-0.stack"), threading.get_ident()

                def look():
                    os.write(write, json.dumps({"pid": os.getpid(), "time_s": time.time(), **file.fields(main)}).encode())
                    while True:
                        time.sleep(0.125)  # as the sampler does

                threading.Thread(target=look, daemon=True).start()
                time.sleep(0.2)
                act()
            finally:
                os._exit(0)
        pids.append(pid)
        record = json.loads(os.read(read, 10_000))
        os.close(read)
        os.close(write)
        time.sleep(0.2 + 0.8)
        return record

    (tmp_path / "boxes").mkdir()
    yield start
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def call_extension():
    ctypes.PyDLL(None).sleep(60)


def stack_of(record):
    """The stack, which a process gives late on a busy machine."""
    deadline = time.monotonic() + 30
    while not (frames := stack_now(record)):
        assert time.monotonic() < deadline
    return frames


def sleep():
    time.sleep(60)


def work():
    while True:
        sum(range(100))


def test_c_code_that_holds_the_lock_is_told_with_the_line_that_called_it_and_is_not_interrupted(process_that):
    record = process_that(call_extension)
    assert holds_lock(record, time.time() - record["time_s"])
    frames = stack_of(record)
    assert frames[0] == (__file__, call_extension.__code__.co_firstlineno + 1, "call_extension")
    assert stack_now(record) == frames
    assert holds_lock(record, time.time() - record["time_s"]), "a sleep that is interrupted ends"


@pytest.mark.parametrize("act", [sleep, work])
def test_a_process_that_sleeps_or_runs_python_code_holds_it_not_and_is_sent_no_signal(process_that, act):
    record = process_that(act)
    assert not holds_lock(record, time.time() - record["time_s"])


def test_a_process_that_does_not_handle_the_signal_is_never_sent_it(process_that):
    record = process_that(call_extension)
    assert stack_now({**record, "time_s": 1.0, "stack_fd": 0}) == []
    assert stack_now({**record, "time_s": 2.0, "pid": os.getpid()}) == []
    assert holds_lock(record, time.time() - record["time_s"])


def test_a_stack_that_was_not_got_is_asked_for_again(process_that):
    record = process_that(call_extension)
    assert stack_now({**record, "stack_fd": 0}) == []
    assert stack_of(record)[0][2] == "call_extension"


RESET = """
import os, signal, threading
from pathlib import Path
from lockstep._base.stopping import catches
from lockstep._tools.explain.interpreter import SIGNAL, StackFile

def answers():
    return catches(os.getpid(), SIGNAL)

Path("boxes").mkdir()
file, found = StackFile(Path("boxes", "1")), [answers()]
for look in (lambda: file.fields(threading.get_ident()), lambda: StackFile(Path("boxes", "2"))):
    signal.signal(SIGNAL, signal.getsignal(SIGNAL))
    found.append(answers())
    look()
    found.append(answers())
print(*found)
"""


def test_a_process_answers_again_after_a_library_has_put_back_all_handlers(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RESET], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.split() == ["True", "False", "True", "False", "True"]


def test_what_faulthandler_writes_is_read_by_thread():
    thread = "(most recent call first)"
    text = f'Current thread 0x00000a {thread}:\n  File "a b.py", line 3 in look\n\n'
    text += f'Thread 0x00000b [main] {thread}:\n  File "c.py", line 4 in <module>\n'
    assert parse_stacks(text) == {10: [("a b.py", 3, "look")], 11: [("c.py", 4, "<module>")]}
