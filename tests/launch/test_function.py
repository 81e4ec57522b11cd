"""``launch(fn, ...)``: the same from a script or a notebook."""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from codes import raises

from lockstep._base import stopping
from lockstep._base.errors import ConfigError, LaunchError, UsageError
from lockstep._base.stopping import INTERRUPTED_STATUS, REQUEUE_STATUS, UNSAVED_STATUS, Stopped
from lockstep._launch import function
from lockstep._launch.function import launch
from lockstep._launch.server import drop_server, kept_server

pytestmark = [pytest.mark.timeout(40), pytest.mark.quick]


@pytest.fixture(scope="module")
def warm(outlives_tests):
    launch(os.getpid, nproc=1)
    outlives_tests(kept_server().pid)
    yield
    drop_server()


def rank_times(factor):
    print("hello from", os.environ["RANK"])
    return int(os.environ["RANK"]) * factor


def fail_on_one():
    if os.environ["RANK"] == "1":
        raise ValueError("boom")


def be_killed_once():
    start = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if (start, os.environ["RANK"]) == ("0", "1"):
        os.kill(os.getpid(), signal.SIGKILL)
    return start


def unpicklable():
    return lambda: 1


def ended():
    os._exit(0)


def stopped(status):
    raise Stopped(status)


def unsaved():
    stopping.end_unsaved("")


def interrupt(pid):
    if os.environ["RANK"] == "0":  # a second one, a moment later, would be another press
        os.kill(pid, signal.SIGINT)
    time.sleep(30)


def test_results_come_back_by_rank_and_output_reaches_python(warm, capsys):
    assert launch(rank_times, 10, nproc=3) == [0, 10, 20]
    assert sorted(capsys.readouterr().out.splitlines()) == ["hello from 0", "hello from 1", "hello from 2"]


def test_later_launches_come_from_the_same_warm_server(warm):
    server = kept_server().pid
    assert launch(os.getppid, nproc=2) == [server] * 2
    assert launch(os.getppid, nproc=3) == [server] * 3


def test_results_are_those_of_the_last_start(warm, capfd):
    assert launch(be_killed_once, nproc=2, max_restarts=1) == ["1", "1"]
    assert "lockstep: restart 1 of 1" in capfd.readouterr().err


def test_a_closure_is_sent_by_value(warm, require):
    require("cloudpickle", None if importlib.util.find_spec("cloudpickle") else "cloudpickle is not installed")
    factor = 5
    assert launch(lambda: int(os.environ["RANK"]) + factor, nproc=2) == [5, 6]


def test_without_cloudpickle_a_closure_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with raises(UsageError, "function-not-importable"):
        launch(lambda: 1, nproc=1)


def test_the_first_failure_is_raised_with_the_functions_frames(warm):
    with pytest.raises(LaunchError, match=r"in fail_on_one\n") as caught:
        launch(fail_on_one, nproc=2)
    first, *_ = str(caught.value).splitlines()
    assert first.startswith("rank 1 of 2 ")
    assert first.endswith("ValueError: boom")


@pytest.mark.parametrize(("fn", "words"), [(unpicklable, "cannot be pickled"), (ended, "before the function returned")])
def test_a_missing_result_is_explained(warm, fn, words):
    with pytest.raises(LaunchError, match=words):
        launch(fn, nproc=1)


@pytest.mark.parametrize("status", [REQUEUE_STATUS, UNSAVED_STATUS])
def test_a_run_that_was_asked_to_stop_ends_the_caller_with_its_status(warm, status):
    with pytest.raises(Stopped) as caught:
        launch(stopped, status, nproc=2)
    assert caught.value.code == status


@pytest.mark.parametrize(("fn", "argument"), [(stopped, INTERRUPTED_STATUS), (interrupt, os.getpid)])
def test_a_run_that_ctrl_c_ends_is_a_keyboard_interrupt_of_the_caller(warm, fn, argument):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        launch(fn, argument() if callable(argument) else argument, nproc=2)
    assert not isinstance(caught.value, SystemExit)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_training_whose_end_is_not_saved_has_its_results_and_is_told(warm, monkeypatch):
    told = []
    monkeypatch.setattr(function, "end_unsaved", told.append)
    assert launch(unsaved, nproc=2) == [None, None]
    assert len(told) == 1
    assert launch(rank_times, 1, nproc=1) == [0]
    assert len(told) == 1


def test_settings_are_checked_before_anything_starts():
    with pytest.raises(ConfigError, match="unknown setting 'stratgy'"):
        launch(rank_times, 1, nproc=2, stratgy="ddp")
    with raises(ConfigError, "max-restarts-invalid"):
        launch(rank_times, 1, nproc=2, max_restarts=-1)
    with raises(ConfigError, "processes-above-shards"):
        launch(rank_times, 1, nproc=2, shards=1)


def run_python(tmp_path, source, **popen):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, cwd=tmp_path, **popen)


@pytest.mark.long
def test_a_function_and_a_class_of_the_calling_script_work(tmp_path):
    done = run_python(
        tmp_path,
        """
        import os
        from dataclasses import dataclass
        from lockstep._launch.function import launch

        @dataclass
        class Box:
            value: int

        def work(box):
            return Box(box.value + int(os.environ["RANK"]))

        if __name__ == "__main__":
            print(launch(work, Box(1), nproc=2))
        """,
    )
    assert (done.stdout, done.stderr) == ("[Box(value=1), Box(value=2)]\n", "")


@pytest.mark.long
def test_a_script_without_a_guard_is_told_so_instead_of_forking_for_ever(tmp_path):
    done = run_python(
        tmp_path,
        """
        from lockstep._launch.function import launch
        def work(): pass
        launch(work, nproc=1)
        """,
    )
    assert done.returncode == 1
    assert 'if __name__ == "__main__"' in done.stderr


@pytest.mark.long
def test_ctrl_c_raises_keyboard_interrupt_after_everything_is_gone(tmp_path):
    done = run_python(
        tmp_path,
        """
        import os, signal, time
        from lockstep._launch.function import launch

        def work(parent):
            open(f"pid-{os.getpid()}", "w").close()
            os.kill(parent, signal.SIGINT)
            time.sleep(100)

        if __name__ == "__main__":
            try:
                launch(work, os.getpid(), nproc=1)
            except KeyboardInterrupt:
                pid = next(name[4:] for name in os.listdir() if name.startswith("pid-"))
                print("interrupted", os.path.exists(f"/proc/{pid}"))
        """,
    )
    assert (done.stdout, done.stderr) == ("interrupted False\n", "")


def test_the_package_can_be_called_as_the_function_it_is_named_after(warm):
    import lockstep

    for _ in range(2):  # the first may find the function, later ones the package
        assert lockstep.launch(rank_times, 2, nproc=2) == [0, 2]
