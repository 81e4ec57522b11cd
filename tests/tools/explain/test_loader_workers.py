"""What a rank's record tells of the loader workers that it waits for, and what counts as progress
there."""

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lockstep._base.reports import LOADER
from lockstep._tools.explain.black_box import read_box
from lockstep._tools.explain.loader_workers import LoaderWorker, batches_of, loader_at, with_stack_now, workers_of
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.sampler import Sampler

pytestmark = pytest.mark.timeout(90)


class Fated(Dataset):
    """Each worker comes to an end of its own kind with its first sample, after it was at it for a
    while."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return [self.is_stopped, self.sleeps, self.waits_for_lock, self.loses][index % 4]()

    def is_stopped(self):
        begin = time.monotonic()
        while time.monotonic() - begin < 1:
            os.getppid()
        os.kill(os.getpid(), signal.SIGSTOP)

    def sleeps(self):
        time.sleep(3600)

    def waits_for_lock(self):
        lock = threading.Lock()
        with lock:
            lock.acquire()

    def loses(self):
        return lambda: None  # cannot be pickled, which its feeder thread finds out


class Slow(Dataset):
    """Each sample takes a while, at one line."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(0.4)
        return torch.zeros(1)


class Held(Slow):
    """Its first sample is in C code that keeps the lock of the interpreter."""

    def __getitem__(self, index):
        return ctypes.PyDLL(None).sleep(60)


@contextlib.contextmanager
def box_of_a_reader(loader):
    """The path of the black box of a thread of this process that reads a loader, whose workers end
    with the block."""
    path, started = Path("rank-1.box"), []

    def read():
        about = {"rank": 1, "world_size": 2, "host": "here", "machine": None, "pid": os.getpid()}
        started.append(Sampler(path, about, lambda: {"activity": "in the script"}, lambda: 0))
        for _ in loader:
            pass

    before = set(psutil.Process().children())
    threading.Thread(target=read, daemon=True).start()
    until(lambda: started)
    try:
        yield path
    finally:
        started[0].close("finished")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's handler would raise an error
        for worker in set(psutil.Process().children()) - before:
            worker.kill()


def until(found, seconds=50):
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return answer


def fates():
    """What is told of each of four workers, by its cause."""
    warnings.filterwarnings("ignore", "This DataLoader will create 4")
    with box_of_a_reader(DataLoader(Fated(), batch_size=None, num_workers=4)) as path:

        def all_told():
            record = read_box(path)
            workers = [] if record is None else RankReport(record, "running", 0.0).workers
            known = [worker for worker in workers if worker.cause and (worker.frames or worker.cause == "lost")]
            return workers if len(known) == 4 else None

        return {
            worker.cause: {
                "frames": worker.frames,
                "pid": worker.record["pid"],
                "error": worker.record["error"],
                "state": psutil.Process(worker.record["pid"]).status(),
                "text": worker.describe(),
            }
            for worker in until(all_told)
        }


def longest_wait():
    """For how long a thread seems not to have moved that gets a batch each 0.4 s."""
    begin, ages = time.time(), []
    with box_of_a_reader(DataLoader(Slow(), batch_size=None, num_workers=1)) as path:
        while time.time() - begin < 4:
            record = read_box(path)
            if record is not None and any(name == "_try_get_data" for _, _, name in record["stack"]):
                ages.append(record["time_s"] - record["since_s"])
            time.sleep(0.1)
    return max(ages)


def longest_idle():
    """For how long a thread seems to wait, and to be idle, whose worker takes 0.4 s for each of the
    11 samples of a batch."""
    begin, waits, idle = time.time(), [], []
    with box_of_a_reader(DataLoader(Slow(), batch_size=11, num_workers=1)) as path:
        while time.time() - begin < 4:
            record = read_box(path)
            if record is not None:
                report = RankReport(record, "running", 0.0)
                waits.append(report.still_s)
                idle.append(report.idle_s)
            time.sleep(0.1)
    return max(waits), max(idle)


def present_stack():
    """What is known in the end of a worker that does not answer: its cause, and its innermost
    frame."""
    with box_of_a_reader(DataLoader(Held(), batch_size=None, num_workers=1)) as path:

        def asked():
            workers = (read_box(path) or {}).get("workers") or [{"time_s": time.time()}]
            record = with_stack_now(workers[0], time.time())
            return record if record.get("is_now") else None

        worker = LoaderWorker(1, until(asked), 0.0, 0.0)
        return worker.cause, worker.frames[0]


@pytest.mark.long
def test_a_worker_whose_interpreter_does_not_answer_is_shown_at_its_present_line(crew):
    [(cause, frame)] = crew(1, present_stack)
    assert (cause, frame[0], frame[2]) == ("holds_gil", __file__, "__getitem__")


def test_each_worker_that_brings_no_batch_is_named_with_why_and_its_line(crew):
    [told] = crew(1, fates)
    assert told.keys() == {"stopped", "sleeping", "lock", "lost"}
    for cause, name in {"stopped": "is_stopped", "sleeping": "sleeps", "lock": "waits_for_lock"}.items():
        file, _, function = told[cause]["frames"][0]
        assert (file, function) == (__file__, name)
    assert told["stopped"]["state"] == psutil.STATUS_STOPPED
    assert f"kill -CONT {told['stopped']['pid']}" in told["stopped"]["text"]
    assert "pickle" in told["lost"]["error"]


def test_a_batch_taken_is_progress_also_where_the_thread_stays_at_one_line(crew):
    assert crew(1, longest_wait)[0] < 3  # it reads for 4 s


def test_a_sample_read_is_work_also_where_the_worker_stays_at_one_line(crew):
    waits, idle = crew(1, longest_idle)[0]
    assert waits > 2.5
    assert idle < 3  # it waits for 4 s


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_and_workers_are_known_of_pytorchs_iterators(num_workers):
    iterator = iter(DataLoader(torch.arange(6), batch_size=2, num_workers=num_workers))
    assert batches_of(iterator) == 0
    next(iterator)
    next(iterator)
    assert batches_of(iterator) == 2
    children = {process.pid for process in psutil.Process().children()}
    assert len(workers_of(iterator)) == num_workers
    assert children.issuperset(workers_of(iterator))


def test_the_iterator_in_which_a_thread_is_is_found_from_its_frame():
    found = []

    class Looks(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            found.append(batches_of(loader_at(sys._getframe())))
            return index

    list(DataLoader(Looks(), batch_size=None))
    assert found == [0, 1, 2]
    assert loader_at(sys._getframe()) is None


STOPPED = """
import os, signal, torch, lockstep
team = lockstep.join(shards=2, seed=1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if team.rank == 1 and index > 200:
            os.kill(os.getpid(), signal.SIGSTOP)  # before it was seen there
        return torch.randn(4), torch.randn(1)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(Data(), 16, num_workers=1))
for batch in loader:
    for x, y in batch.shards:
        team.backward((model(x) - y).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""
UNCHANGED = """
import os, tempfile, torch, torch.distributed as dist
tempfile.tempdir = os.environ["LONG"]  # as Python does at its start with TMPDIR
dist.init_process_group("gloo")  # and no collective: the limit of the first ones is 60 s
def read():
    for x in torch.utils.data.DataLoader([torch.ones(2)] * 9, num_workers=1):
        dist.all_reduce(x)
read()
"""


@pytest.mark.long
def test_a_run_that_waits_for_a_stopped_worker_is_told_of_it_and_ends_within_five_seconds(loader_report_of):
    launcher, report = loader_report_of(STOPPED)
    assert (report["ranks"], report["cause"]) == ([1], "stopped")
    assert report["places"]["1"].endswith("/train.py:9 in __getitem__")
    started = psutil.Process(launcher.pid).children(recursive=True)
    begin = time.monotonic()
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(30)
    # 3.5 s on a machine that is not busy; 12 s where the rank waits for its worker
    assert time.monotonic() - begin < 10
    assert not [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.long
def test_an_unchanged_script_whose_workers_lose_their_batches_is_told_why(loader_report_of, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    _, report = loader_report_of(UNCHANGED, LONG=str(long))
    assert (report["ranks"], report["cause"]) == ([0, 1], "tmpdir")
    assert report["places"]["1"].endswith(" in read")


@pytest.fixture
def loader_report_of(start_launcher, tmp_path):
    """``loader_report_of(source, **env)``: a launcher of 2 processes, and its first report of kind
    ``loader``."""

    def run(source, **env):
        (tmp_path / "train.py").write_text(source)
        file = tmp_path / "reports.jsonl"
        words = ("--nproc-per-node", 2, "--reports", file, "train.py")
        with Path(os.devnull).open("w") as nowhere:
            launcher = start_launcher(*words, env=env, stdout=nowhere, stderr=nowhere)
        until(lambda: file.exists() and file.read_text())
        report = json.loads(file.read_text().splitlines()[0])
        assert report["kind"] == LOADER
        return launcher, report

    return run
