"""What a thread handles, and where the others are that it may wait for, is told by another one."""

import threading

import pytest

from lockstep.tools.explain.threads import handled_by, other_threads


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("label file 17\nis empty"), "ValueError: label file 17 ("), (SilentError(), "SilentError ("), (None, "")],
)
def test_what_a_thread_handles_is_told_with_its_line_and_nothing_is_once_it_has(error, words):
    is_there, may_go = threading.Event(), threading.Event()

    def work():
        try:
            if error is not None:
                raise error
        except type(error):
            is_there.set()
            may_go.wait(60)
        is_there.set()
        may_go.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_there.wait(60)
    told = handled_by(thread.ident)
    may_go.set()
    thread.join()
    assert told.startswith(words)
    assert ("test_what_threads_do.py:" in told) == (error is not None)
    assert handled_by(thread.ident) == handled_by(threading.get_ident()) == ""


def test_threads_that_run_the_scripts_code_are_named_with_their_lines_and_others_are_not():
    lock, held, release = threading.Lock(), threading.Event(), threading.Event()

    def fill_cache():
        with lock:
            held.set()
            release.wait(60)

    threads = [
        threading.Thread(target=fill_cache, name="fill-cache"),
        threading.Thread(target=release.wait, args=(60,), name="silent"),
    ]
    for thread in threads:
        thread.start()
    held.wait(60)
    (line,) = other_threads(threading.get_ident())
    inside = other_threads(threads[0].ident)
    release.set()
    for thread in threads:
        thread.join(60)
    assert "`fill-cache`" in line
    assert "in fill_cache" in line
    assert not any("fill-cache" in each for each in inside)
