"""``--max-restarts``: when a worker fails, all of them start again, and only then."""

import os
import random
import re
import signal

import pytest
from launch_helpers import MEET, is_running, read_pids, until

from lockstep._base.errors import ConfigError
from lockstep._launch import supervise
from lockstep._launch.output import OutputPlan
from lockstep._launch.restarts import check_max_restarts

pytestmark = pytest.mark.timeout(40)

# One more collective than the failing rank comes to: the others are blocked in it.
TRAIN = """
import ctypes, pathlib, signal, sys, time
START = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
VICTIM, STEP = int(sys.argv[1]), int(sys.argv[2])
pathlib.Path(f"pid-{os.getpid()}").touch()
for step in range(STEP + 2):
    dist.all_reduce(one)
    if START == 0 and RANK == VICTIM and step == STEP:
        print(f"rank {RANK} fails", flush=True)
        FAIL
print(f"rank {RANK} done after restart {START} of {os.environ['TORCHELASTIC_MAX_RESTARTS']}, server {os.getppid()}")
"""


@pytest.mark.parametrize(
    ("seed", "statement", "words"),
    [
        (11, "os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        (12, "raise ValueError('boom')", "ValueError: boom"),
    ],
)
def test_after_a_failure_at_any_place_all_start_again_from_the_same_server(
    run_warm, server, tmp_path, seed, statement, words
):
    place = random.Random(seed)
    victim, step = place.randrange(3), place.randrange(50)
    source = TRAIN.replace("FAIL", statement)
    ended = run_warm(source, str(victim), str(step), nproc=3, meet=True, max_restarts=2)
    told = f"seed {seed}: rank {victim} at step {step}\n{ended}"
    assert not ended.outcome.failures, told
    done = [f"rank {rank} done after restart 1 of 2, server {server.pid}" for rank in range(3)]
    assert ended.lines == sorted([*done, f"rank {victim} fails"]), told
    lines = ended.err.splitlines()
    assert lines[0].startswith(f"rank {victim} of 3 on {os.uname().nodename} failed:"), told
    assert words in lines[0], told
    assert lines[-1].startswith("lockstep: restart 1 of 2: "), told
    assert "3 processes" in lines[-1], told
    assert len(read_pids(tmp_path)) == 6, told
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)], told


def test_each_start_meets_at_a_place_of_its_own(run_warm):
    ended = run_warm(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")  # through env://, at the other meeting place: the port
        dist.barrier()
        import os
        print(os.environ["LOCKSTEP_STORE"])
        if os.environ["TORCHELASTIC_RESTART_COUNT"] != "2":
            dist.barrier()
            os._exit(1)
        """,
        max_restarts=2,
    )
    assert not ended.outcome.failures, ended
    assert len(ended.lines) == 6
    assert len(set(ended.lines)) == 3


def test_with_no_restart_left_the_last_failure_ends_the_run(start_own):
    launcher = start_own(
        "import os, sys; sys.exit(5 + int(os.environ['TORCHELASTIC_RESTART_COUNT']))", "--max-restarts", "2"
    )
    _, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 7
    *found, last = re.findall(r"SystemExit: .*(sys\.exit\(\d\))$|^lockstep: (restart \d of \d): |^(lockstep: .*)", err, re.M)
    restarts = [("sys.exit(5)", "restart 1 of 2"), ("sys.exit(6)", "restart 2 of 2"), ("sys.exit(7)", "")]
    assert [exit_ or restart for exit_, restart, _ in found] == [each for both in restarts for each in both if each]
    assert last[2].endswith("(2)")
    assert len([line for line in err.splitlines() if line]) == 6


def test_an_error_that_would_only_come_again_does_not_restart(start_own, tmp_path):
    launcher = start_own(
        "import os, lockstep; open(f'pid-{os.getpid()}', 'w').close(); raise lockstep.ConfigError('no')",
        *("--max-restarts", "2", "--nproc-per-node", "2"),
    )
    _, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 1
    assert len(read_pids(tmp_path)) <= 2
    last = err.splitlines()[-1]
    assert last.startswith("lockstep: not started again: ")
    assert "ConfigError" in last
    assert "restart 1" not in err


def test_a_stopped_run_does_not_start_again(start_own, tmp_path):
    number = signal.SIGINT
    source = MEET + "import pathlib\npathlib.Path(f'pid-{os.getpid()}').touch()\nwhile True: dist.all_reduce(one)\n"
    launcher = start_own(source, "--nproc-per-node", "2", "--max-restarts", "3")
    until(lambda: len(read_pids(tmp_path)) == 2)
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 128 + number
    assert (out, len(err.splitlines())) == ("", 1), err
    assert len(read_pids(tmp_path)) == 2


def test_a_run_that_fails_while_it_saves_for_a_stop_does_not_start_again(start_own, tmp_path):
    launcher = start_own(
        """
        import os, pathlib, time
        import lockstep, torch

        class Unsaved:
            def state_dict(self):
                raise ValueError("cannot be saved")
            def load_state_dict(self, state):
                pass

        with lockstep.join(checkpoint_every=10_000) as team:
            model, loader = team.prepare(torch.nn.Linear(1, 1), [torch.ones(1, 1)] * 10_000)
            for batch in loader:
                for x in batch.shards:
                    team.backward(model(x).mean())
                if team.step == 1:
                    team.register("unsaved", Unsaved())
                    pathlib.Path(f"pid-{os.getpid()}").touch()
                time.sleep(0.01)
        """,
        *("--max-restarts", "3"),
    )
    until(lambda: read_pids(tmp_path))
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=100)
    assert launcher.returncode not in (0, None), err
    assert "cannot be saved" in err
    assert len(read_pids(tmp_path)) == 1
    assert "restart 1 of" not in err


def test_ctrl_c_while_a_failed_start_ends_is_not_followed_by_a_restart(start_own, tmp_path):
    launcher = start_own(
        """
        import os, pathlib, signal, sys, time
        pathlib.Path(f"pid-{os.getpid()}").touch()
        if os.environ["RANK"] == "0":
            # the others signal the launcher, whose number must be there by then
            while len(list(pathlib.Path().glob("pid-*"))) < 2 or not os.path.exists("launcher"): time.sleep(0.01)
            sys.exit(1)
        def told(*_):
            os.kill(int(pathlib.Path("launcher").read_text()), signal.SIGINT)
        signal.signal(signal.SIGINT, told)
        while True: time.sleep(0.01)
        """,
        *("--nproc-per-node", "2", "--max-restarts", "3"),
    )
    (tmp_path / "number").write_text(str(launcher.pid))
    (tmp_path / "number").rename(tmp_path / "launcher")
    _, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 130
    assert err.startswith("stopped by Ctrl-C"), err
    assert len(read_pids(tmp_path)) == 2


@pytest.mark.long
def test_a_restart_does_not_wait_for_a_rank_that_will_not_end_as_long_as_an_end_does(run_warm, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE_S", 10_000.0)
    ended = run_warm(
        """
        import os, pathlib, signal, time
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            os._exit(0)
        pathlib.Path(f"pid-{os.getpid()}").touch()
        if os.environ["RANK"] == "1":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            time.sleep(10_000)
        while len(list(pathlib.Path().glob("pid-*"))) < 2: time.sleep(0.01)
        os._exit(1)
        """,
        max_restarts=1,
    )
    assert not ended.outcome.failures, ended


@pytest.mark.parametrize("tee", [False, True])
def test_a_restart_is_appended_to_the_logs(run_warm, tmp_path, tee):
    ended = run_warm(
        """
        import os, pathlib, time
        start, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        print("start", start, end="", flush=True)
        pathlib.Path(f"said-{start}-{rank}").touch()
        if start != "2":
            while rank == "0" or not os.path.exists(f"said-{start}-0"): time.sleep(0.01)
            raise ValueError("boom " + start)
        """,
        plan=OutputPlan(log_dir=tmp_path, tee=tee),
        max_restarts=2,
    )
    assert not ended.outcome.failures, ended
    for rank in (0, 1):
        text = (tmp_path / f"rank-{rank}.log").read_text()
        words = ("start 0", "boom 0", "restart 1 of 2", "start 1", "boom 1", "restart 2 of 2", "start 2")
        places = [text.find(word) for word in words if rank == 1 or not word.startswith("boom")]
        assert -1 not in places, text
        assert places == sorted(places), text
    assert ended.out.count("[rank 0] start") == (3 if tee else 0)


@pytest.mark.parametrize("asked", [-1, 1.5])
def test_what_is_no_number_of_restarts_is_refused(asked):
    with pytest.raises(ConfigError, match=r"max_restarts=.*0 or more"):
        check_max_restarts(asked)
