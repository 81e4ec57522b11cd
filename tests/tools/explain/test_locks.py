"""Who holds what a rank waits for: a lock, the lock of a file, a pool that has lost a worker."""

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from lockstep._tools.explain.file_locks import awaited_lock
from lockstep._tools.explain.frames import name_of
from lockstep._tools.explain.locks import LOCK, POOL, THREAD, awaited_by

pytestmark = pytest.mark.timeout(60)
LIMIT_S = 20.0


def until(act):
    """The first value of this function that is not false."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := act()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


@pytest.fixture
def waits():
    """``waits(function)``: what a thread that calls this function is found to wait for."""
    threads = []

    def run(act):
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        threads.append(thread)
        return until(lambda: awaited_by(thread.ident))

    yield run
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


class Cache:
    """Whose lock another thread keeps until it is told."""

    def __init__(self, lock):
        self.lock = lock
        self.done = threading.Event()
        self.has_begun = threading.Event()
        self.thread = threading.Thread(target=self.fill_cache, name="fill-cache", daemon=True)
        self.thread.start()
        self.has_begun.wait(LIMIT_S)

    def fill_cache(self):
        with self.lock:
            self.has_begun.set()
            self.done.wait(LIMIT_S)

    def read(self):
        with self.lock:
            pass

    def read_late(self):
        self.lock.acquire()
        self.lock.release()


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Condition])
@pytest.mark.parametrize("how", ["read", "read_late"])
def test_the_thread_that_holds_a_lock_is_named_with_its_line(waits, make, how):
    cache = Cache(make())
    found = waits(getattr(cache, how))
    cache.done.set()
    assert (found["kind"], found["holder"]) == (LOCK, "fill-cache")
    assert "`self.lock`" in found["words"]
    assert re.search(r"test_locks.py:\d+ in fill_cache", found["words"])


def test_a_lock_whose_holder_is_not_known_has_none(waits):
    lock = threading.Lock()
    lock.acquire()

    def take():
        with lock:
            pass

    found = waits(take)
    lock.release()
    assert found["kind"] == LOCK
    assert "holder" not in found
    assert "`lock`" in found["words"]


def test_a_thread_that_waits_for_its_own_lock_is_told_so(waits):
    lock, own = threading.Lock(), []

    def outer():
        own.append(threading.current_thread())
        with lock:
            inner(lock)

    def inner(mine):
        mine.acquire()  # released below, as any thread may

    found = waits(outer)
    lock.release()
    assert (found["kind"], [found["holder"]]) == (LOCK, [*map(name_of, own)])
    assert "`mine`" in found["words"]


def test_the_thread_whose_end_is_waited_for_is_named(waits):
    cache = Cache(threading.Lock())
    found = waits(cache.thread.join)
    cache.done.set()
    assert (found["kind"], found["holder"]) == (THREAD, "fill-cache")
    assert re.search(r"test_locks.py:\d+ in fill_cache", found["words"])


LOSES_A_WORKER = """
import json, multiprocessing, os, signal, threading, time
from lockstep._tools.explain.locks import awaited_by

def watch(ident):
    found = []
    for _ in range(2):
        deadline = time.monotonic() + 20
        while not (newest := awaited_by(ident)) and time.monotonic() < deadline and (found or time.monotonic() < deadline - 19):
            time.sleep(0.01)
        found.append(newest)
        os.kill(min(child.pid for child in multiprocessing.active_children()), signal.SIGKILL)
    print(json.dumps(found), flush=True)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)

pool = multiprocessing.get_context("fork").Pool(2)
results = [pool.apply_async(time.sleep, (3600,)) for _ in range(2)]
threading.Thread(target=watch, args=(threading.get_ident(),)).start()
results[0].get()
"""


def test_a_pool_that_has_lost_a_worker_is_told_and_one_that_works_is_not(tmp_path):
    """This fails first if the attributes of ``multiprocessing.pool`` move."""
    script = tmp_path / "pool.py"
    script.write_text(LOSES_A_WORKER)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=50, check=True)
    before, after = json.loads(ended.stdout)
    assert before == {}
    assert after["kind"] == POOL
    assert "1 worker " in after["words"]


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_the_process_that_holds_the_lock_of_a_file_is_named(tmp_path, how):
    path = tmp_path / "index.lock"
    code = f"import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.{how}(file, fcntl.LOCK_EX); print('has it')"
    with path.open("a") as file:
        getattr(fcntl, how)(file, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-S", "-c", code, path], stdout=subprocess.PIPE) as other:
            found = until(lambda: awaited_lock(other.pid, ""))
            getattr(fcntl, how)(file, fcntl.LOCK_UN)
            assert b"has it" in other.stdout.read()
    assert (found.file, found.holder) == (str(path), os.getpid())
    assert "python" in found.command or "pytest" in found.command
    assert awaited_lock(os.getpid(), "") is None


def test_the_process_that_holds_a_lock_that_is_polled_for_is_named(tmp_path):
    path = tmp_path / "hub.lock"
    with path.open("a") as file:
        assert awaited_lock(1 << 30, str(path)) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert awaited_lock(1 << 30, str(path)).holder == os.getpid()
