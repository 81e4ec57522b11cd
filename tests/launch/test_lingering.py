"""Workers whose script is over and whose process does not end: it is said what keeps them, and a
signal ends them."""

import contextlib
import json
import math
import re
import signal
import subprocess
import time

import psutil
import pytest
from click.testing import CliRunner
from launch_helpers import is_running, read_pids, until

from lockstep._base.stopping import SAME_S
from lockstep._launch.lingering import LINGERS_S, Lingering
from lockstep._tools.explain import command as stacks

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

# Each rank is kept from ending by something else, and rank 3 by nothing.
KINDS = """
import atexit, multiprocessing, os, pathlib, queue, threading, time
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
if RANK == 1: atexit.register(flush_metrics)
if RANK == 2: fork.Process(target=crunch, name="server").start()
if RANK == 3: threading.Thread(target=upload, daemon=True).start()
"""
SAID = (
    ("rank 0", "thread `upload`", "script.py:7 in upload"),
    ("rank 1", "exit handler `flush_metrics`", "script.py:11 in flush_metrics"),
    ("rank 2", "child process", "(`server`)"),
)

OWN = """
import sys, threading, torch, lockstep
num_epochs, is_over = int(sys.argv[1]), threading.Event()

team = lockstep.join(shards=2, run_dir="run")
if team.rank == 1: threading.Thread(target=is_over.wait).start()
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
"""


@pytest.fixture
def start(start_launcher, tmp_path, monkeypatch):
    """``start(source, nproc, *args)``: a launcher in the working directory, whose output goes to
    the file ``said``."""
    monkeypatch.chdir(tmp_path)

    def start(source, nproc, *args, options=()):
        (tmp_path / "script.py").write_text(source)
        with (tmp_path / "said").open("w") as said:
            return start_launcher("--nproc", nproc, *options, "script.py", *args, stdout=said, stderr=said)

    return start


def look(*options):
    # nothing, before the launcher is there
    return CliRunner().invoke(stacks.command, options).output


def holders(*options):
    """By rank, the kinds of what keeps it from ending, as far as ranks have reported."""
    with_stacks = look(*options, "--json")
    reports = json.loads(with_stacks) if with_stacks.startswith("[") else []
    return {report["rank"]: [each["kind"] for each in report.get("ending", {}).get("holders", ())] for report in reports}


def test_what_keeps_processes_from_ending_is_said_with_its_line_and_a_signal_ends_them(start_cold, tmp_path):
    # By the command itself: what pytest has imported changes the order of exit handlers.
    with (tmp_path / "said").open("w") as file:
        launcher = start_cold(KINDS, "--nproc", "4", stdout=file, stderr=file)
    said = (tmp_path / "said").read_text
    until(lambda: said().count("WARNING: rank ") == len(SAID), timeout_s=200)
    warnings = {text.partition(" does")[0]: text for text in said().split("WARNING: ")[1:]}
    for rank, what, line in SAID:
        assert what in warnings[rank], rank
        assert line in warnings[rank], rank
    shown = look("--pid", str(launcher.pid))
    assert re.search(r"rank 3 of 4 .*: finished, .* 0\n", shown)
    assert re.search(r"rank 0 of 4 .*\n  thread `upload`:\n    \S+script.py:7 ", shown)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=60) == 143
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]


@pytest.mark.parametrize(("num_epochs", "status"), [(1, 0), (1_000_000, 75)], ids=["over", "saved"])
def test_a_second_signal_ends_a_run_that_a_thread_keeps_and_its_status_is_that_of_the_run(
    start, tmp_path, num_epochs, status
):
    launcher = start(OWN, 2, num_epochs)
    if status:
        until(lambda: "epoch 2/" in (tmp_path / "said").read_text())
        launcher.send_signal(signal.SIGTERM)
    until(lambda: "thread" in holders("--pid", str(launcher.pid)).get(1, ()))
    patience_s = 60.0 if status else SAME_S + 0.5
    time.sleep(SAME_S + 0.5)  # signals that follow each other closely count once
    while launcher.poll() is None:
        launcher.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(patience_s)
        patience_s = 60.0
    assert launcher.returncode == status
    assert ("is saved after step" in (tmp_path / "said").read_text()) == bool(status)


class Reporter:
    """Reports workers of which it ``knows`` what keeps them."""

    def __init__(self):
        self.asked, self.knows = [], set()

    def ask(self, question):
        return question(self)

    def linger(self, ranks):
        self.asked.append(ranks)
        return self.knows & set(ranks)


def test_a_process_is_reported_once_when_it_has_been_there_long_enough_and_it_is_known_what_keeps_it():
    reporter = Reporter()
    lingering = Lingering(reporter)
    for rank, over_at in enumerate((100.0, 100.0, 104.0)):
        lingering.begin(rank, over_at)
    lingering.end(0)
    lingering.look(lingering.next_look)
    assert lingering.next_look < 100 + LINGERS_S + 2
    reporter.knows = {1, 2}
    lingering.look(100 + LINGERS_S + 1)
    lingering.look(100 + LINGERS_S + 2)
    lingering.look(104 + LINGERS_S)
    assert reporter.asked == [[1], [1], [], [2]]
    assert lingering.next_look == math.inf


def test_a_process_that_holds_the_output_of_a_run_that_is_over_keeps_it_from_nothing(start, tmp_path):
    launcher = start(
        'import subprocess; print("left", subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)',
        1,
        options=["--tee"],
    )
    assert launcher.wait(timeout=60) == 0
    psutil.Process(int((tmp_path / "said").read_text().rpartition("left ")[2])).kill()
