"""What a thread handles is told by another one."""

import threading

import pytest

from lockstep._tools.explain.threads import dead_threads, handled_by, see_threads_die


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


def test_the_exceptions_of_which_threads_die_are_kept_and_reach_the_hook_of_the_script(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type))
    see_threads_die()
    see_threads_die()

    def upload(error):
        raise error

    for error in (KeyError("weights"), SystemExit(1), SilentError(), RuntimeError("no space left\nthere")):
        thread = threading.Thread(target=upload, args=(error,))
        thread.start()
        thread.join()
    assert seen == [KeyError, SystemExit, SilentError, RuntimeError]
    silent, newest = dead_threads()
    assert (silent["thread"], newest["thread"]) == ("upload", "upload")
    assert silent["error"].startswith("SilentError (")
    assert newest["error"].startswith("RuntimeError: no space left (")
    assert "test_what_threads_do.py:" in newest["error"]
