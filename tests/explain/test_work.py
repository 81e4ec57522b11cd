"""What a process is seen to do while its main thread stays at one line."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from torch.utils.data import DataLoader, Dataset

from lockstep.tools.explain.loader_workers import batches_received
from lockstep.tools.explain.process import Usage, descendants, usage_of
from lockstep.tools.explain.work import Snapshot, Work, WorkMeter, work_between

SPAN_S = 4.0


def snapshot(time_s, own_s=0.0, **children):
    return Snapshot(time_s, own_s, {int(name[1:]): usage for name, usage in children.items()})


def test_the_process_itself_comes_before_its_children_and_of_these_the_busiest():
    before = snapshot(0, 5.0, p7=Usage("make", 1.0, 0, 0), p8=Usage("cc1", 1.0, 0, 0))
    after = snapshot(10, 9.0, p7=Usage("make", 1.2, 0, 1), p8=Usage("cc1", 9.0, 0, 0))
    assert list(work_between(before, after)) == [Work("computes"), Work("computes", 8, "cc1")]


def test_children_that_copy_or_wake_up_are_at_work_and_idle_ones_are_not():
    idle = Usage("python", 1.0, 1000, 5)
    copies, wakes = Usage("cp", 1.0, 10**8, 5), Usage("python", 1.01, 1000, 9)
    before = snapshot(0, p7=idle, p8=idle, p9=idle)
    assert list(work_between(before, snapshot(10, p7=idle, p8=copies, p9=wakes))) == [
        Work("reads or writes", 8, "cp"),
        Work("wakes", 9, "python"),
    ]
    assert list(work_between(before, snapshot(10, p7=idle, p8=idle, p9=idle))) == []


def test_one_that_is_blocked_while_data_is_written_to_disk_is_at_work():
    blocked = [
        Snapshot(time_s, 0.0, {}, True, written) for time_s, written in ((0, 10**9), (10, 10**9 + 10**8), (20, 10**9))
    ]
    assert [work.how for work in work_between(*blocked[:2])] == ["waits for a disk, and data is being written"]
    assert list(work_between(blocked[0], blocked[2])) == [], "nothing is written"
    assert list(work_between(Snapshot(0, 0.0, {}), blocked[1])) == [], "it was not blocked"


@pytest.fixture
def child():
    """Starts a Python process that runs this code."""
    started = []

    def start(code):
        command = [sys.executable, "-c", f"print(flush=True)\n{code}"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        started[-1].stdout.readline()  # it is up
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def measured(act, is_fork=lambda _: False):
    """What is seen when ``act`` is called between two measurements."""
    meter, now_s = WorkMeter(is_fork), time.time()
    meter.look(now_s, is_still=True)
    meter.look(now_s, is_still=True)  # no longer the first: what was read before does not count
    seen_s = meter.worked_s
    act()
    meter.look(now_s + SPAN_S, is_still=True)
    return meter.newest if meter.worked_s > seen_s else None


def test_a_grandchild_that_computes_is_seen_and_a_child_that_sleeps_is_not(child):
    child("import signal; signal.pause()")
    assert measured(lambda: None) is None
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = child(nested)
    until(lambda: descendants(parent))
    (computes,) = descendants(parent)
    assert computes in descendants()
    began_s = usage_of(computes).cpu_s
    try:
        work = measured(lambda: until(lambda: usage_of(computes).cpu_s > began_s + 0.5))
    finally:
        os.kill(computes, signal.SIGKILL)
    assert (work.how, work.pid) == ("computes", computes)


@pytest.mark.long
def test_computing_in_another_thread_is_work_and_what_the_measuring_thread_uses_is_none():
    def compute():
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.5:
            pass

    thread = threading.Thread(target=compute)
    assert measured(compute) is None
    assert measured(lambda: (thread.start(), thread.join())) == Work("computes")


@pytest.mark.parametrize("is_fork", [True, False])
def test_a_fork_that_wakes_up_again_and_again_is_at_work_and_another_program_is_not(child, is_fork):
    pid = child("import time\nwhile True: time.sleep(0.02)")
    until(lambda: usage_of(pid).num_wakes > 20)
    began = usage_of(pid).num_wakes
    work = measured(lambda: until(lambda: usage_of(pid).num_wakes > began + 5), lambda other: is_fork and other == pid)
    # The other program has used some processor time, too, but too little.
    assert (work.how if work else None) == ("wakes" if is_fork else None)


class Delayed(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(0.2)
        return index


@pytest.mark.long
def test_each_batch_of_a_loader_is_seen_to_arrive_though_the_line_is_the_same():
    seen, over, main = set(), threading.Event(), threading.get_ident()

    def look():
        while not over.wait(0.01):
            with contextlib.suppress(KeyError):
                seen.add(batches_received(sys._current_frames()[main]))

    batches = iter(DataLoader(Delayed(), num_workers=1))
    watch = threading.Thread(target=look)
    watch.start()
    try:
        assert len(list(batches)) == 10
    finally:
        over.set()
        watch.join()
    assert len({count for _, count in seen - {None}}) >= 3
    assert batches_received(sys._getframe()) is None
