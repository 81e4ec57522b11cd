"""What a thread handles is told by another one."""

import threading

import pytest

from lockstep.tools.explain.threads import handled_by


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
