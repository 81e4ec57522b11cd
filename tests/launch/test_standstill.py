"""A rank that somebody has stopped (SIGSTOP) is found, named, and treated as the failure that it is to the others."""

import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch_helpers import is_running, read_pids, until

from lockstep.launch import standstill
from lockstep.launch.standstill import Standstill

pytestmark = pytest.mark.timeout(40)

SEEDS = (21, 22, 23)

# The rank to be stopped is named by its pid in a file; all end well if it is not there in the second start.
TRAIN = """
import pathlib, sys, time
START, VICTIM = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(sys.argv[1])
pathlib.Path(f"pid-{os.getpid()}").touch()
end_s = time.monotonic() + float(sys.argv[2])
while True:
    one.fill_(float(START == 1 or time.monotonic() > end_s))
    dist.all_reduce(one)
    if RANK == VICTIM and START == 0:
        pathlib.Path("victim.new").write_text(str(os.getpid()))
        pathlib.Path("victim.new").replace("victim")
    if one.item() > 0:
        break
print(f"done after restart {START}")
"""


@pytest.fixture
def stop_victim(tmp_path):
    """``stop_victim(delay_s, for_s)``: in the background, stop the rank that the script names; later let it go on."""
    threads = []

    def stop(delay_s, for_s=None):
        def work():
            pid = int(until(lambda: (tmp_path / "victim").exists() and (tmp_path / "victim").read_text()))
            time.sleep(delay_s)
            os.kill(pid, signal.SIGSTOP)
            (tmp_path / "stopped").write_text(f"{pid} {time.time()}")
            if for_s is not None:
                time.sleep(for_s)
                os.kill(pid, signal.SIGCONT)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield stop
    for thread in threads:
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_stopped_rank_is_named_killed_and_all_start_again(run_warm, stop_victim, tmp_path, seed):
    place = random.Random(seed)
    victim, delay_s = place.randrange(3), place.uniform(0.0, 0.3)
    stop_victim(delay_s)
    ended = run_warm(TRAIN, str(victim), "30", nproc=3, meet=True, settings={"timeout_s": 2.0}, max_restarts=1)
    told = f"seed {seed}: rank {victim} stopped after {delay_s:.3f} s\n{ended}"
    assert not ended.outcome.failures, told
    assert ended.lines == ["done after restart 1"] * 3, told
    pid, stopped_at_s = (tmp_path / "stopped").read_text().split()
    first = ended.err.splitlines()[0]
    assert first.startswith(f"rank {victim} of 3 on {os.uname().nodename} failed: stopped: process {pid} was"), told
    assert "while others waited" in first, told
    assert "kill -CONT" in first, told
    assert ended.ended_s - float(stopped_at_s) > 1.0, "half of the timeout had not passed yet\n" + told
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)], told


@pytest.mark.long
def test_a_rank_that_goes_on_in_time_is_left_alone(run_warm, stop_victim):
    stop_victim(0.0, for_s=0.8)
    ended = run_warm(TRAIN, "1", "2", meet=True, settings={"timeout_s": 4.0}, max_restarts=1)
    assert not ended.outcome.failures, ended
    assert ended.lines == ["done after restart 0"] * 2
    assert ended.err == ""


def test_without_restarts_the_stopped_rank_is_the_failure_that_the_run_ends_with(run_warm, stop_victim):
    stop_victim(0.0)
    ended = run_warm(TRAIN, "0", "30", meet=True, settings={"timeout_s": 1.0})
    first = ended.outcome.failures[0]
    assert (first.rank, first.kind, first.exit_status) == (0, "stopped", 137)


@pytest.mark.long
def test_it_is_named_also_where_the_script_lets_the_others_wait_less_than_the_launcher_knows(run_warm, stop_victim):
    stop_victim(0.0)
    source = TRAIN.replace(
        "while True:", "import datetime\ngroup = dist.new_group(timeout=datetime.timedelta(seconds=2))\nwhile True:"
    )
    ended = run_warm(source.replace("dist.all_reduce(one)", "dist.all_reduce(one, group=group)"), "0", "30", meet=True)
    first, second = ended.outcome.failures
    assert (first.rank, first.kind) == (0, "stopped"), ended
    assert second.is_consequence, ended


# The clock by itself: real processes, and a time of the test's own.


@pytest.fixture
def watched(monkeypatch):
    """Three processes that sleep; ``watched.at(t)`` is what a ``Standstill`` of timeout 20 sees at time t."""

    class Watched:
        def __init__(self):
            self.now = 100.0
            monkeypatch.setattr(standstill, "time", SimpleNamespace(monotonic=lambda: self.now))
            self.processes = [subprocess.Popen(["sleep", "100"]) for _ in range(3)]
            self.standstill = Standstill(3, 20.0)

        def send(self, number, *ranks):
            for rank in ranks:
                self.processes[rank].send_signal(number)
                stopped = number == signal.SIGSTOP
                while (state(self.processes[rank].pid) == "T") != stopped:
                    time.sleep(0.001)

        def at(self, passed_s):
            self.now = 100.0 + passed_s
            return self.standstill.look({rank: process.pid for rank, process in enumerate(self.processes)})

    def state(pid):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    found = Watched()
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


def test_time_counts_from_the_first_look_on_and_the_longest_is_first(watched):
    assert watched.at(0.5) == {}
    watched.send(signal.SIGSTOP, 2)
    assert watched.at(1.0) == {2: 0.0}
    watched.send(signal.SIGSTOP, 1)
    assert watched.at(2.0) == {2: 1.0, 1: 0.0}
    assert list(watched.at(3.0).items()) == [(2, 2.0), (1, 1.0)]


def test_a_process_that_went_on_begins_at_zero(watched):
    watched.send(signal.SIGSTOP, 0)
    watched.at(1.0)
    assert watched.at(2.0) == {0: 1.0}
    watched.send(signal.SIGCONT, 0)
    assert watched.at(3.0) == {}
    watched.send(signal.SIGSTOP, 0)
    assert watched.at(4.0) == {0: 0.0}


def test_a_process_that_ran_between_two_looks_begins_at_zero(watched, monkeypatch):
    ticks = iter([5, 5, 6, 6])
    monkeypatch.setattr(standstill, "_cpu_if_stopped", lambda pid: next(ticks) if pid == watched.processes[0].pid else None)
    assert [watched.at(second)[0] for second in (1.0, 2.0, 3.0, 4.0)] == [0.0, 1.0, 0.0, 1.0]


def test_while_all_are_stopped_nobody_waits(watched):
    watched.send(signal.SIGSTOP, 0, 1, 2)
    watched.at(1.0)
    assert watched.at(5.0) == {0: 0.0, 1: 0.0, 2: 0.0}


def test_time_in_which_the_launcher_was_stopped_itself_does_not_count(watched):
    watched.send(signal.SIGSTOP, 0)
    watched.at(1.0)
    assert watched.at(1000.0) == {0: 2.0}


def test_a_process_that_is_gone_is_not_stopped(watched):
    watched.processes[1].kill()
    watched.processes[1].wait()
    assert watched.at(1.0) == {}


@pytest.mark.parametrize(("nproc", "timeout_s", "next_s"), [(2, 600.0, 1.0), (2, 4.0, 0.4), (1, 600.0, float("inf"))])
def test_it_looks_once_a_second_or_ten_times_in_a_timeout_and_never_at_a_lone_process(nproc, timeout_s, next_s):
    before = time.monotonic()
    assert Standstill(nproc, timeout_s).next_look - before == pytest.approx(next_s, abs=0.05)
