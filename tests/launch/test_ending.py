"""Ctrl-C, SIGTERM and a launcher that is killed: nothing outlives the run, and nobody makes a
noise."""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from launch_helpers import MEET, is_running, read_pids, until

from lockstep._launch import supervise
from lockstep._launch.private import remove_abandoned

pytestmark = pytest.mark.timeout(40)

TRAIN_FOR_EVER = (
    MEET
    + """
import pathlib, time

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, i):
        pathlib.Path(f"pid-{os.getpid()}").touch()
        return i

pathlib.Path(f"pid-{os.getpid()}").touch()
pathlib.Path("private").write_text(os.path.dirname(os.environ["LOCKSTEP_STORE"]))
try:
    for _ in torch.utils.data.DataLoader(Numbers(), num_workers=2):
        dist.all_reduce(one)
        pathlib.Path(f"training-{RANK}").touch()
finally:
    pathlib.Path(f"finally-{RANK}").touch()
"""
)


def training(directory):
    return len(list(directory.glob("training-*"))) == 2 and len(read_pids(directory)) == 6


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
    ids=["2-130", "15-143"],  # not those of the Python at hand
)
def test_a_stopped_run_ends_once_and_quietly(start_own, tmp_path, number, status):
    launcher = start_own(TRAIN_FOR_EVER, "--nproc-per-node", "2")
    until(lambda: training(tmp_path))
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=100)
    assert launcher.returncode == status
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert "stopped by" in err
    assert {path.name for path in tmp_path.glob("finally-*")} == {"finally-0", "finally-1"}
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]


def test_the_last_words_of_a_script_that_was_stopped_are_shown(start_own, tmp_path):
    launcher = start_own(
        """
        import pathlib, sys, time
        try:
            pathlib.Path("ready").touch()
            time.sleep(100)
        except KeyboardInterrupt:
            sys.exit("stopped at step 7")
        """
    )
    until((tmp_path / "ready").exists)
    launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 130
    assert [line.partition(";")[0] for line in err.splitlines()] == ["stopped at step 7", "stopped by Ctrl-C"]


def test_a_second_ctrl_c_kills_at_once(run_warm, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE_S", 10_000.0)  # which the first one gives
    ended = run_warm(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: print("asked", flush=True))
        while True:
            os.kill(int(sys.argv[1]), signal.SIGINT)
            time.sleep(1)  # `timeout -s INT` sends it twice in a row, which counts once
        """,
        str(os.getpid()),
        nproc=1,
    )
    assert ended.outcome.stopped_by == signal.SIGINT
    assert ended.lines == ["asked"]


def test_ctrl_c_before_any_worker_exists_is_quiet_too(start_cold):
    launcher = start_cold("print('never')")
    server = until(lambda: psutil.Process(launcher.pid).children())[0]
    time.sleep(0.1)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=100)
    assert (launcher.returncode, out, len(err.splitlines())) == (130, "", 1)
    until(lambda: not is_running(server.pid))


def test_workers_loader_workers_and_server_die_with_a_killed_launcher(start_own, tmp_path):
    launcher = start_own(TRAIN_FOR_EVER, "--nproc-per-node", "2")
    until(lambda: training(tmp_path))
    pids = {child.pid for child in psutil.Process(launcher.pid).children(recursive=True)}
    assert pids > read_pids(tmp_path)
    assert len(pids) == 7  # the server, two workers, four loader workers
    launcher.kill()
    until(lambda: not [pid for pid in pids if is_running(pid)])
    private = Path((tmp_path / "private").read_text())
    # The one thing that nobody was left to remove: the next launch does, which may be one of a test
    # beside this one.
    remove_abandoned(tempfile.gettempdir())
    assert not private.parent.exists()


LEAVE_SOMETHING = """
import os, pathlib, signal, subprocess, sys
for name, command, own_session in (
    ("in-the-ranks-session", ["sleep", "100"], False),
    ("in-its-own-session", ["sleep", "100"], True),
):
    process = subprocess.Popen(command, start_new_session=own_session, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pathlib.Path(name).write_text(str(process.pid))
"""


@pytest.fixture
def still_there(tmp_path):
    """Call it: which of the processes of LEAVE_SOMETHING are left."""
    names = ("in-the-ranks-session", "in-its-own-session")

    def pid(name):
        return int((tmp_path / name).read_text())

    yield lambda: {name for name in names if is_running(pid(name))}
    for name in names:
        if (tmp_path / name).exists() and is_running(pid(name)):
            os.kill(pid(name), signal.SIGKILL)


def test_what_a_script_left_on_purpose_stays_when_all_went_well(run_warm, still_there):
    assert not run_warm(LEAVE_SOMETHING, nproc=1).outcome.failures
    assert still_there() == {"in-its-own-session"}


def test_what_a_script_left_on_purpose_goes_when_it_failed(run_warm, still_there):
    assert run_warm(LEAVE_SOMETHING + "sys.exit(1)", nproc=1).outcome.failures
    assert still_there() == set()


def test_all_listening_sockets_are_on_loopback(start_own, tmp_path):
    script = MEET + 'import pathlib, time\npathlib.Path(f"pid-{os.getpid()}").touch()\ntime.sleep(100)\n'
    launcher = start_own(script, "--nproc-per-node", "2")
    until(lambda: len(read_pids(tmp_path)) == 2)
    tree = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    sockets = [socket for process in tree for socket in process.net_connections(kind="inet")]
    listening = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert len(listening) >= 2  # Gloo's, one a rank
    assert set(listening) <= {"127.0.0.1", "::1"}
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(timeout=100)


def test_sigusr1_ends_a_run_in_which_nobody_handles_it(start_own, tmp_path):
    launcher = start_own("import pathlib, time; pathlib.Path('ready').touch(); time.sleep(100)")
    until((tmp_path / "ready").exists)
    launcher.send_signal(signal.SIGUSR1)
    _, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 128 + signal.SIGUSR1
    assert err.startswith("stopped by SIGUSR1")
    assert len(err.splitlines()) == 1, err


def test_what_comes_to_every_process_of_the_job_ends_a_run_once_and_quietly(start_own, tmp_path):
    launcher = start_own(TRAIN_FOR_EVER, "--nproc-per-node", "2")
    until(lambda: training(tmp_path))
    for process in [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]:
        # the launcher, the first of them, has ended it by now
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=100)
    assert (launcher.returncode, out, len(err.splitlines())) == (143, "", 1), err
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]
