"""The promise that a process which forks while threads of a process group finish their work has a child that lives."""

import ctypes
import subprocess
import sys
import threading

import pytest

from lockstep.world.comm import forking

pytestmark = pytest.mark.timeout(120)

# Threads that Python does not know, made by C, each of which asks for Python once, as a thread of Gloo does that lets go
# of a tensor; and forks right behind their start. Without the wait some 3 in 10000 children hang on Python 3.11.7.
FORKS = """
import ctypes, os, signal, sys, time
from lockstep.world.comm.forking import guard_forks

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def ask_for_python(_):
    return 0

guard_forks()
guard_forks()
libc = ctypes.CDLL(None)
at_once = ctypes.PyDLL(None)  # does not let go of Python's lock
at_once.pthread_create.argtypes = [ctypes.c_void_p] * 4
for number in range(int(sys.argv[1])):
    threads = [ctypes.c_ulong() for _ in range(24)]
    for thread in threads:
        at_once.pthread_create(ctypes.addressof(thread), None, ctypes.cast(ask_for_python, ctypes.c_void_p), None)
    child = os.fork()
    if child == 0:
        os._exit(0)
    for thread in threads:
        libc.pthread_join(thread, None)
    deadline = time.monotonic() + 50
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            sys.exit(f"the child of fork {number} hangs")
        time.sleep(0.0005)
"""


@pytest.mark.longest
def test_no_child_hangs_whatever_threads_do_while_it_is_forked():
    command = [sys.executable, "-c", FORKS, "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def spinlock():
    """A lock of C that is held: who asks for it computes, in C, until ``spinlock.release()``."""
    libc, lock = ctypes.CDLL(None), ctypes.c_int()
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))
    released = threading.Event()

    class Spinlock:
        is_released = released.is_set

        def ask(self):
            libc.pthread_spin_lock(ctypes.byref(lock))

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


def test_one_that_always_computes_does_not_hold_up_a_fork_for_ever(spinlock):
    join = spinlock.ask_in_a_thread_of_c()
    forking.wait_for_rest()
    spinlock.release()
    join()


def test_threads_of_python_are_not_waited_for(spinlock, monkeypatch):
    monkeypatch.setattr(forking, "_PATIENCE_S", 3600)
    thread = threading.Thread(target=spinlock.ask)
    thread.start()
    forking.wait_for_rest()
    spinlock.release()
    thread.join()


def wait_for_rest_with_much_patience():
    forking._PATIENCE_S = 3600  # of this process, which ends
    forking.wait_for_rest()


@pytest.mark.timeout(30)
def test_a_process_that_was_forked_itself_does_not_wait_for_its_own_main_thread(crew):
    crew(2, wait_for_rest_with_much_patience)
