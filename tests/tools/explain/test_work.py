"""What a process is seen to do while its main thread stays at one line."""

import subprocess
import sys

import pytest

from lockstep._tools.explain.work import CHILDREN_WORK, COMPUTES, READS_OR_WRITES, Used, work_between

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


SCRIPT = """
import subprocess, sys, threading, time, psutil
from lockstep._tools.explain.work import WorkMeter

SPAN_S, COMPUTE = 4.0, "while True: pass"

def measured(act):
    meter, now_s = WorkMeter(), time.time()
    meter.look(now_s, is_still=True)
    act()
    meter.look(now_s + SPAN_S, is_still=True)
    print(meter.newest)

def compute():
    began_s = time.thread_time()
    while time.thread_time() < began_s + 0.5:
        pass

def has_computed(process, span_s):
    until_s = process.cpu_times().user + span_s
    while process.cpu_times().user < until_s:
        time.sleep(0.02)

def with_child(command, act):
    with subprocess.Popen(command) as child:
        family = psutil.Process(child.pid)
        try:
            act(family)
        finally:
            for each in [*family.children(), family]:
                each.kill()

def with_grandchild(family):
    while not family.children():
        time.sleep(0.02)
    measured(lambda: has_computed(family.children()[0], 0.5))

thread = threading.Thread(target=compute)
measured(compute)
measured(lambda: (thread.start(), thread.join()))
with_child(["sleep", "100"], lambda family: measured(lambda: time.sleep(1)))
nest = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTE!r}])"
with_child([sys.executable, "-c", nest], with_grandchild)
"""


def test_other_threads_and_grandchildren_work_the_measuring_thread_and_sleeping_children_do_not():
    # In a process without any other children, as those of other tests would count.
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["", COMPUTES, "", CHILDREN_WORK]
