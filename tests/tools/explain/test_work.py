"""What a process is seen to do while its main thread stays at one line."""

import subprocess
import sys
import threading
import time

import psutil
import pytest

from lockstep._tools.explain.work import CHILDREN_WORK, COMPUTES, READS_OR_WRITES, Used, WorkMeter, work_between

SPAN_S = 4.0
IDLE = Used(0.0, 5.0, 1000, 5.0, 1000)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (Used(10.0, 5.1, 1000, 5.1, 1000), ""),
        (Used(10.0, 9.0, 1000, 9.0, 1000), COMPUTES),
        (Used(10.0, 5.0, 10**8, 5.0, 1000), READS_OR_WRITES),
        (Used(10.0, 5.0, 1000, 9.0, 1000), CHILDREN_WORK),
        (Used(10.0, 5.0, 1000, 5.0, 10**8), CHILDREN_WORK),
    ],
)
def test_a_process_that_computes_or_copies_works_and_so_do_its_children(after, words):
    assert work_between(IDLE, after) == words


def measured(act):
    """What is seen when ``act`` is called between two measurements."""
    meter, now_s = WorkMeter(), time.time()
    meter.look(now_s, is_still=True)
    act()
    meter.look(now_s + SPAN_S, is_still=True)
    return meter.newest


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


COMPUTE = "while True: pass"
NEST = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTE!r}])"


@pytest.mark.parametrize(("command", "words"), [(["sleep", "100"], ""), ([sys.executable, "-c", NEST], CHILDREN_WORK)])
def test_a_grandchild_that_computes_is_seen_and_a_child_that_sleeps_is_not(command, words):
    with subprocess.Popen(command) as child:
        family = psutil.Process(child.pid)
        if words:
            until(family.children)
        try:
            assert measured(lambda: time.sleep(1)) == words
        finally:
            for each in [*family.children(), family]:
                each.kill()


def test_computing_in_another_thread_is_work_and_what_the_measuring_thread_uses_is_none():
    def compute():
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.5:
            pass

    thread = threading.Thread(target=compute)
    assert measured(compute) == ""
    assert measured(lambda: (thread.start(), thread.join())) == COMPUTES
