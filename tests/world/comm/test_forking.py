"""The promise that a process which forks while threads of a process group finish their work has a
child that lives."""

import ctypes
import threading

import pytest

from lockstep._world.comm import forking

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def spinlock():
    """A lock of C that is held: who asks for it computes, in C, until ``spinlock.release()``."""
    libc, lock = ctypes.CDLL(None), ctypes.c_int()
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))
    released = threading.Event()

    class Spinlock:
        is_released = released.is_set

        def release(self):
            if not released.is_set():
                released.set()
                libc.pthread_spin_unlock(ctypes.byref(lock))

        def ask_in_a_thread_of_c(self):
            """Returns what waits for the end of that thread."""
            thread = ctypes.c_ulong()
            libc.pthread_create(ctypes.byref(thread), None, libc.pthread_spin_lock, ctypes.byref(lock))
            return lambda: libc.pthread_join(thread, None)

    spinlock = Spinlock()
    yield spinlock
    spinlock.release()


def test_a_thread_that_python_does_not_know_is_waited_for(spinlock, monkeypatch):
    monkeypatch.setattr(forking, "_PATIENCE_S", 100)
    join = spinlock.ask_in_a_thread_of_c()
    timer = threading.Timer(0.3, spinlock.release)
    timer.start()
    forking.wait_for_rest()
    assert spinlock.is_released()
    timer.join()
    join()


def wait_for_rest_with_much_patience():
    forking._PATIENCE_S = 3600  # of this process, which ends
    forking.wait_for_rest()


@pytest.mark.timeout(30)
def test_a_process_that_was_forked_itself_does_not_wait_for_its_own_main_thread(crew):
    crew(2, wait_for_rest_with_much_patience)
