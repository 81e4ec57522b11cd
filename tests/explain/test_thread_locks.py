"""What a thread waits for from another one, and who has it, as far as Python knows."""

import contextlib
import queue
import threading
import time

import pytest

from lockstep.tools.explain.thread_locks import awaited_by

pytestmark = pytest.mark.timeout(60)


class Cache:
    def __init__(self, lock):
        self.lock = lock


def enter(cache):
    with cache.lock:
        pass


def acquire(cache):
    cache.lock.acquire()
    cache.lock.release()


@contextlib.contextmanager
def waiting(wait):
    """The id of a thread that has been in ``wait()`` for a moment."""
    thread = threading.Thread(target=wait, name="waiter", daemon=True)
    thread.start()
    time.sleep(0.2)
    yield thread.ident
    thread.join(30)
    assert not thread.is_alive()


@contextlib.contextmanager
def holding(lock):
    """Another thread, ``holder``, holds the lock."""
    release, held = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold, name="holder", daemon=True)
    holder.start()
    held.wait()
    yield
    release.set()
    holder.join(30)


def told(ident, number=1):
    deadline = time.monotonic() + 30
    while len(lines := awaited_by(ident)) < number and time.monotonic() < deadline:
        time.sleep(0.05)
    return "\n".join(lines)


@pytest.mark.parametrize("wait", [enter, acquire])
def test_the_thread_that_holds_an_rlock_is_named_with_its_line(wait):
    cache = Cache(threading.RLock())
    release = contextlib.ExitStack()
    release.enter_context(holding(cache.lock))
    with waiting(lambda: wait(cache)) as ident:
        text = told(ident)
        release.close()
    assert "RLock `cache.lock`" in text
    assert "thread `holder` holds" in text
    assert "test_thread_locks.py" in text


def test_of_a_plain_lock_it_is_said_that_python_does_not_know_its_holder_and_where_other_threads_are():
    cache = Cache(threading.Lock())
    release = contextlib.ExitStack()
    release.enter_context(holding(cache.lock))
    with waiting(lambda: enter(cache)) as ident:
        text = told(ident)
        release.close()
    assert "the Lock `cache.lock`; Python does not know" in text
    assert "thread `holder` is at " in text


def test_the_holder_of_a_condition_is_named():
    cache = Cache(threading.Condition())
    release = contextlib.ExitStack()
    release.enter_context(holding(cache.lock))
    with waiting(lambda: enter(cache)) as ident:
        text = told(ident)
        release.close()
    assert "a Condition, which thread `holder` holds" in text


def test_a_queue_an_event_and_another_thread_are_named():
    jobs, event = queue.Queue(), threading.Event()
    with waiting(jobs.get) as ident:
        assert "an item in an empty queue" in told(ident)
        jobs.put(None)
    with waiting(jobs.join) as ident:
        assert "for 1 task" in told(ident)
        jobs.task_done()
    with waiting(event.wait) as first, waiting(lambda: join(first)) as second:
        assert "Event" in told(first)
        assert "the end of thread `waiter`" in told(second)
        event.set()


def join(ident):
    next(thread for thread in threading.enumerate() if thread.ident == ident).join()


def test_a_thread_that_waits_for_no_other_is_told_nothing_of():
    release = threading.Lock()
    cache = Cache(threading.Lock())

    def sleep():
        while not release.locked():
            time.sleep(0.01)  # cache.lock.acquire() is named here, and free

    with waiting(sleep) as ident:
        assert awaited_by(ident) == []
        assert not cache.lock.locked()
        release.acquire()


def test_no_code_of_the_script_runs_to_find_a_lock():
    class Loud:
        @property
        def lock(self):
            raise AssertionError("this was called")

        def __enter__(self):
            event.wait()

        def __exit__(self, *_):
            pass

    event, loud = threading.Event(), Loud()

    def wait():
        with loud:
            event.wait()

    with waiting(wait) as ident:
        assert "Event" in told(ident)
        event.set()
