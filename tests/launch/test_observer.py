"""The seam between the launcher and what explains a run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.base import extensions, process_observer
from lockstep.base.observers import Observers
from lockstep.launch.observer import Launch, Observer

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"


@pytest.mark.long
def test_without_the_tools_runs_start_fail_with_their_traceback_and_end(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "lockstep", ignore=lambda directory, names: {"tools", "__pycache__"} & set(names))
    script = tmp_path / "script.py"
    script.write_text(
        "import lockstep, os, sys, time\n"
        "print(os.environ['RANK'], lockstep.__file__, flush=True)\n"
        "if sys.argv[1] == 'fails':\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise ValueError('boom')\n"
        "    time.sleep(1000)\n"
    )
    command = [sys.executable, "-m", "lockstep", "run", "--nproc", "2", str(script)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    started = [subprocess.Popen([*command, how], env=environ, **options) for how in ("fails", "ends")]
    try:
        (_, said), (out, nothing) = [process.communicate(timeout=90) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    init = tmp_path / "lockstep" / "__init__.py"
    assert (sorted(out.splitlines()), nothing) == ([f"0 {init}", f"1 {init}"], "")
    assert [process.returncode for process in started] == [1, 0]
    assert "rank 1 of 2" in said
    assert f'"{script}", line 5' in said
    assert "ValueError: boom" in said


class _Knows(Observer):
    def last_seen(self, rank):
        return f"rank {rank} slept"

    def ended(self, rank, status):
        self.launch.end((rank, status))


class _Fails(Observer):
    def last_seen(self, rank):
        raise OSError("no such file")

    def ended(self, rank, status):
        raise OSError("no such file")


@pytest.fixture
def only(monkeypatch):
    """``only(kind, **made)``: these extensions of a kind, and no others, are installed."""

    def install(kind, **made):
        monkeypatch.setattr(extensions, "names", lambda asked: list(made) if asked == kind else [])
        monkeypatch.setattr(extensions, "load", lambda _, name: made[name])

    yield install
    process_observer.installed.cache_clear()


def test_a_question_is_answered_by_the_first_observer_that_knows_and_errors_of_others_do_not_matter(only, capfd):
    def cannot_start(launch):
        raise ImportError("no module named there")

    ended = []
    only("observers", broken=cannot_start, failing=_Fails, ignorant=Observer, knowing=_Knows)
    observers = Observers("observers", Launch(private_dir="", world_size=2, ranks=(0, 1), end=ended.append))
    assert "broken" in capfd.readouterr().err
    assert observers.ask(lambda observer: observer.last_seen(1)) == "rank 1 slept"
    assert observers.ask(lambda observer: observer.who_waits((1,))) is None
    observers.tell(lambda observer: observer.ended(1, -9))
    assert ended == [(1, -9)]


def test_an_error_that_no_observer_knows_needs_none(only):
    class Explains(process_observer.ProcessObserver):
        def in_words(self, error):
            return "It is too small." if isinstance(error, ValueError) else ""

    def in_words_of(error, **observers):
        process_observer.installed.cache_clear()
        only("process_observers", **observers)
        return process_observer.in_words(error)

    assert in_words_of(ValueError()) == ""
    assert in_words_of(ValueError(), ignorant=process_observer.ProcessObserver, explains=Explains) == "It is too small."
    assert in_words_of(KeyError(), explains=Explains) == ""
