"""Workers whose script is over and whose process does not end: it is said what keeps them, and a signal ends them."""

import json
import re
import signal

import psutil
import pytest
from click.testing import CliRunner
from launch_helpers import is_running, read_pids, until

from lockstep.launch.idleness import Idleness, Usage
from lockstep.tools.explain import command as stacks

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

# Each rank is kept from ending by something else, and rank 7 by nothing.
KINDS = """
import atexit, concurrent.futures, multiprocessing, os, pathlib, queue, subprocess, threading, time
RANK, jobs, fork = int(os.environ["RANK"]), queue.Queue(), multiprocessing.get_context("fork")
pathlib.Path(f"pid-{os.getpid()}").touch()

def upload():
    while jobs.get() is not None:
        pass

def flush_metrics():
    jobs.get()

def crunch():
    pathlib.Path(f"pid-{os.getpid()}").touch()
    time.sleep(1000)

if RANK == 0: threading.Thread(target=upload).start()
if RANK == 1: concurrent.futures.ThreadPoolExecutor(4).submit(upload)
if RANK == 2: atexit.register(flush_metrics)
if RANK == 3: fork.Process(target=crunch, name="server").start()
if RANK == 4: concurrent.futures.ProcessPoolExecutor(1, fork).submit(crunch)
if RANK == 5:
    items = multiprocessing.Queue()
    items.put(bytes(10_000_000))
if RANK == 6:
    program = subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE)
    atexit.register(program.communicate)
if RANK == 7: threading.Thread(target=upload, daemon=True).start()

def copy():
    with open("/dev/zero", "rb") as zeros:
        while True:
            zeros.read(1 << 20)
            time.sleep(0.02)

if RANK == 8: threading.Thread(target=copy).start()
"""
SAID = (
    ("rank 0", "thread `upload` waits", "script.py:7 in upload"),
    ("rank 1", "thread `ThreadPoolN` of an executor waits", "script.py:7 in upload"),
    ("rank 2", "exit handler `flush_metrics` waits", "script.py:11 in flush_metrics"),
    ("rank 3", "child N (`server`) waits", "script.py:15 in crunch"),
    ("rank 4", "child N of an executor waits", "script.py:15 in crunch"),
    ("rank 5", "a multiprocessing.Queue with items that nobody takes", "cancel_join_thread"),
    ("rank 6", "child N (`sleep 1000`) waits", "SIGTERM"),
)

OWN = """
import atexit, queue, sys, threading, torch, lockstep
kind, num_epochs, jobs = sys.argv[1], int(sys.argv[2]), queue.Queue()

def upload():
    while jobs.get() is not None:
        pass

def flush_metrics():
    jobs.get()

team = lockstep.join(shards=2, run_dir="run")
if kind == "thread" and team.rank == 1: threading.Thread(target=upload).start()
if kind == "after the run" and team.rank == 1: atexit.register(flush_metrics)
data = torch.utils.data.TensorDataset(torch.ones(24, 4), torch.ones(24, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=6))
for epoch in team.epochs(num_epochs):
    for batch in loader:
        for x, y in batch.shards:
            team.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
if kind == "before the run is closed" and team.rank == 1: atexit.register(flush_metrics)
"""


@pytest.fixture
def start(start_launcher, tmp_path, monkeypatch):
    """``start(source, nproc, *args)``: a launcher in the working directory, whose output goes to the file ``said``."""
    monkeypatch.chdir(tmp_path)

    def start(source, nproc, *args, options=()):
        (tmp_path / "script.py").write_text(source)
        with (tmp_path / "said").open("w") as said:
            return start_launcher("--nproc", nproc, *options, "script.py", *args, stdout=said, stderr=said)

    return start


def look(*options):
    return CliRunner().invoke(stacks.command, options).output  # nothing, before the launcher is there


def holders(*options):
    """By rank, the kinds of what keeps it from ending, as far as ranks have reported."""
    with_stacks = look(*options, "--json")
    reports = json.loads(with_stacks) if with_stacks.startswith("[") else []
    return {report["rank"]: [each["kind"] for each in report.get("ending", {}).get("holders", ())] for report in reports}


def test_what_keeps_processes_from_ending_is_said_with_its_line_and_a_signal_ends_them(start_cold, tmp_path):
    # By the command itself: what pytest has imported changes the order of exit handlers.
    with (tmp_path / "said").open("w") as file:
        launcher = start_cold(KINDS, "--nproc", "9", stdout=file, stderr=file)
    said = (tmp_path / "said").read_text
    until(lambda: said().count("not end") == len(SAID) and "still ending" in said(), timeout_s=200)
    assert re.search(r"rank 8 is still ending.* thread `copy` is at work, at \S+script.py:\d+ in copy\n", said())
    texts = [re.sub(r"process \d+|Executor-\d+_\d+", "N", text) for text in said().split("WARNING: ")[1:]]
    warnings = {text.partition(" does")[0]: text for text in texts}
    for rank, what, line in SAID:
        assert what in warnings[rank], rank
        assert line in warnings[rank], rank
    shown = look("--pid", str(launcher.pid))
    assert re.search(r"rank 7 of 9 .*: finished, with status 0\n", shown)
    assert re.search(
        r"rank 0 of 9 .*: ending, for \d+ s: the script is over\n  thread `upload`:\n    \S+script.py:7 in", shown
    )
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=60) == 143
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]


@pytest.mark.parametrize("kind", ["thread", "before the run is closed", "after the run"])
def test_a_signal_ends_a_run_whose_script_is_over_and_the_run_is_closed(start, kind):
    launcher = start(OWN, 2, kind, 1)
    pid = str(launcher.pid)
    until(lambda: set(holders("--pid", pid).get(1, ())) & {"thread", "handler"})
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=60) == 0  # what has blocked was interrupted, and then the process ended well
    assert "finished" in look("run")


def test_a_signal_ends_a_run_that_is_saved_and_whose_thread_goes_on(start, tmp_path):
    launcher = start(OWN, 2, "thread", 1_000_000)
    until(lambda: "epoch 2/" in (tmp_path / "said").read_text())
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=60) == 75
    assert "is saved after step" in (tmp_path / "said").read_text()


def test_a_process_that_holds_the_output_of_a_run_that_is_over_is_named(start, tmp_path):
    launcher = start(
        'import subprocess; print("left", subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)',
        1,
        options=["--tee"],
    )
    said = (tmp_path / "said").read_text
    try:
        until(lambda: "all ranks have ended" in said(), timeout_s=200)
        assert re.search(r"process \d+ \(`sleep 1000`\), which rank 0 has started", said())
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=60) == 0
    finally:
        left = re.search(r"left (\d+)", said())
        if left is not None:
            psutil.Process(int(left[1])).kill()


def test_a_session_is_idle_while_its_processes_use_next_to_nothing():
    idleness = Idleness(100.0)
    idleness.note(Usage(cpu_s=5.0), 101.0)
    assert idleness.idle_s == 1.0
    idleness.note(Usage(cpu_s=5.01), 102.0)
    assert idleness.idle_s == 2.0
    idleness.note(Usage(cpu_s=5.5), 103.0)
    assert idleness.idle_s == 0.0
    idleness.note(Usage(cpu_s=5.5, is_blocked=True), 104.0)
    assert idleness.idle_s == 0.0
    idleness.note(Usage(cpu_s=5.5, num_bytes=1 << 30), 105.0)
    assert idleness.idle_s == 0.0
    idleness.note(Usage(cpu_s=5.5, num_bytes=1 << 30), 107.0)
    assert idleness.idle_s == 2.0
