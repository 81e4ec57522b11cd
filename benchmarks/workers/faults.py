"""What goes wrong in ``faulty_lockstep.py`` and ``faulty_torchrun.py``: functions by name, called in one place of the loop."""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import fcntl
import hashlib
import multiprocessing
import os
import pdb
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

AT_STEP = 30
NUM_SAMPLES = 2400


def wait_for_licence() -> None:
    time.sleep(3600)


def parse_caption() -> None:
    """Holds the interpreter for hours: the regular expression backtracks."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def update_cache() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def read_control_file() -> None:
    """Nobody ever writes into it."""
    path = Path(tempfile.mkdtemp(), "control")
    os.mkfifo(path)
    path.read_text()


def refine_boxes() -> None:
    while True:
        pass


def poll_for_labels() -> None:
    """Nobody ever makes that file."""
    while not os.path.lexists("/nowhere/labels"):
        time.sleep(0.2)


def save_weights() -> None:
    """Into a pipe that nobody reads."""
    path = Path(tempfile.mkdtemp(), "weights")
    os.mkfifo(path)
    torch.save(torch.zeros(7), path)


def call_preprocessor() -> None:
    """Another program hangs."""
    subprocess.run(["sleep", "3600"], check=True)


def receive_weights() -> None:
    """Nobody sends them."""
    dist.recv(torch.zeros(7), src=(dist.get_rank() + 1) % dist.get_world_size())


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def average_by_hand() -> None:
    """A collective that the other ranks do not call."""
    dist.all_reduce(torch.zeros(7))


def write_images() -> None:
    time.sleep(0.03)


def read_labels() -> NoReturn:
    raise ValueError("label 10 is not one of 0 to 9")


def call_extension() -> None:
    ctypes.string_at(0)


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave_at_once() -> None:
    os._exit(3)


def read_settings() -> None:
    """Cleans up with the others, who never come there."""
    try:
        {"width": 16}["depth"]
    finally:
        dist.barrier()


def wait_for_cache() -> None:
    """A thread of this process keeps the lock."""
    lock = threading.Lock()

    def fill_cache() -> None:
        with lock:
            time.sleep(3600)

    threading.Thread(target=fill_cache, name="fill-cache", daemon=True).start()
    time.sleep(0.5)
    lock.acquire()


def load_vocabulary() -> None:
    torch.empty(1 << 50, dtype=torch.uint8)


# On all ranks in the same step, of which one does something else


def count_samples(is_culprit: bool) -> None:
    """Equally many bytes, of another type."""
    dist.all_reduce(torch.tensor([16], dtype=torch.int32) if is_culprit else torch.tensor([16.0]))


def take_maximum(is_culprit: bool) -> None:
    """The others add."""
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if is_culprit else dist.ReduceOp.SUM)


def reduce_by_group(is_culprit: bool) -> None:
    """In two groups, in another order."""
    first, second = GROUPS
    for group in (second, first) if is_culprit else (first, second):
        dist.all_reduce(torch.zeros(4), group=group)


def leave_out_group(is_culprit: bool) -> None:
    """One rank never comes to a group's collective."""
    if not is_culprit:
        dist.all_reduce(torch.zeros(4), group=GROUPS[0])


def lock_index(is_culprit: bool) -> None:
    """The next rank has the file's lock, and keeps it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    file = LOCKED.open("a")
    OPEN.append(file)
    if (rank + world_size - 1) % world_size == int(sys.argv[2]):
        fcntl.flock(file, fcntl.LOCK_EX)
    dist.barrier()
    if is_culprit:
        fcntl.flock(file, fcntl.LOCK_EX)


TOGETHER = {
    function.__name__: function for function in (count_samples, take_maximum, reduce_by_group, leave_out_group, lock_index)
}
GROUPS: list[dist.ProcessGroup] = []
OPEN: list[Any] = []
LOCKED = Path("index.lock")


# When the training is over: what keeps the process of one rank from ending


def leave_thread() -> None:
    """Nobody tells it that there is nothing more to upload."""
    threading.Thread(target=queue.Queue().get, name="upload").start()


def leave_exit_handler() -> None:
    atexit.register(flush_metrics)


def flush_metrics() -> None:
    time.sleep(3600)


def leave_child() -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), name="renderer").start()


AT_THE_END = {function.__name__: function for function in (leave_thread, leave_exit_handler, leave_child)}


# In the data set, which loader workers read where there are some


def fetch_from_archive() -> None:
    time.sleep(3600)


def write_past_shared_memory() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def decode_slowly() -> None:
    time.sleep(0.004)


class SlowLayer(torch.autograd.Function):
    """Takes its time in the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.03)
        return gradient


# What is no fault: others wait for a while, and nobody should be told that the run is stuck, or a rank slow


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        x = torch.randn(64, 64)
        x = x @ x
        x = x.relu()


def evaluate_long() -> None:
    compute(20)


def compile_long() -> None:
    compute(20)


def save_long() -> None:
    with tempfile.TemporaryFile(dir=".") as file:
        end = time.monotonic() + 15
        while time.monotonic() < end:
            file.seek(0)
            torch.save(torch.zeros(1 << 20), file)
            os.fsync(file.fileno())


def debug() -> None:
    """Somebody thinks for a while at a debugger's prompt."""
    path = Path(tempfile.mkdtemp(), "typed")
    os.mkfifo(path)

    def think() -> None:
        with path.open("w") as typed:
            time.sleep(20)
            typed.write("continue\n")

    threading.Thread(target=think, daemon=True).start()
    with path.open() as typed:
        pdb.Pdb(stdin=typed, stdout=sys.stdout).set_trace()


TOOK_S = 16.0
"""How long what follows keeps the other ranks waiting, about. It happens on one rank, between two steps."""


def compress(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        zlib.compress(os.urandom(1 << 20))


def run_tool() -> None:
    """Another program computes."""
    code = f"import os, time, zlib; e = time.time() + {TOOK_S}\nwhile time.time() < e: zlib.compress(os.urandom(1 << 20))"
    subprocess.run([sys.executable, "-c", code], check=True)


def tokenize_in_pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(compress, [TOOK_S / 2] * 4, chunksize=1)


def compress_in_threads() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(compress, [TOOK_S / 2] * 4))


class Pictures(torch.utils.data.Dataset[torch.Tensor]):
    """Of which each takes a while, to read or to decode."""

    def __init__(self, count: int, read_s: float = 0.0, decode_s: float = 0.0) -> None:
        self.count, self.read_s, self.decode_s = count, read_s, decode_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.read_s)
        compress(self.decode_s)
        return torch.full((8,), float(index))


def evaluate_batches() -> None:
    """Batches arrive, and take no time themselves."""
    for batch in own_loader(Pictures(int(TOOK_S / 0.08), read_s=0.08)):
        batch.mean()


def evaluate_here() -> None:
    """The same without workers: a loop that sleeps at one line."""
    pictures = Pictures(int(TOOK_S / 0.08), read_s=0.08)
    for batch in torch.utils.data.DataLoader(pictures, 16, generator=torch.Generator()):
        batch.mean()


def wait_for_first_batch() -> None:
    next(iter(own_loader(Pictures(16, decode_s=TOOK_S / 16))))


def wait_for_slow_reads() -> None:
    next(iter(own_loader(Pictures(16, read_s=TOOK_S / 16))))


def own_loader(pictures: Pictures) -> torch.utils.data.DataLoader[torch.Tensor]:
    """Of one rank, whose random numbers are not taken from the stream that all ranks share."""
    return torch.utils.data.DataLoader(pictures, 16, num_workers=1, generator=torch.Generator())


def _rounds(act: Callable[[int], object], count: int) -> int:
    """How many of these take ``TOOK_S`` seconds."""
    began = time.monotonic()
    act(count)
    return int(count * TOOK_S / (time.monotonic() - began))


def add_up() -> None:
    """One line, which holds the interpreter lock."""
    count = _rounds(lambda count: sum(range(count)), 3_000_000)
    sum(range(count))


def derive_key() -> None:
    """One line, which does not."""
    count = _rounds(lambda count: hashlib.pbkdf2_hmac("sha256", b"key", b"salt", count), 100_000)
    hashlib.pbkdf2_hmac("sha256", b"key", b"salt", count)


def download() -> None:
    """Slowly, from this machine."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            for _ in range(int(TOOK_S / 0.2)):
                theirs.sendall(bytes(20_000))
                time.sleep(0.2)

    threading.Thread(target=serve, daemon=True).start()
    with ours, tempfile.TemporaryFile() as file:
        while data := ours.recv(1 << 16):
            file.write(data)


def poll_for_job() -> None:
    end = time.monotonic() + TOOK_S
    while time.monotonic() < end:
        time.sleep(0.5)


BETWEEN_STEPS = {
    function.__name__: function
    for function in (
        run_tool,
        tokenize_in_pool,
        compress_in_threads,
        evaluate_batches,
        evaluate_here,
        wait_for_first_batch,
        wait_for_slow_reads,
        add_up,
        derive_key,
        download,
        poll_for_job,
    )
}


def train_long() -> None:
    """Nothing special, but for what the benchmark does to the processes meanwhile."""


ONCE = {
    function.__name__: function
    for function in (
        evaluate_long,
        save_long,
        debug,
        wait_for_licence,
        parse_caption,
        update_cache,
        read_control_file,
        refine_boxes,
        poll_for_labels,
        save_weights,
        call_preprocessor,
        receive_weights,
        stop_this_process,
        average_by_hand,
        read_labels,
        call_extension,
        kill_this_process,
        leave_at_once,
        read_settings,
        wait_for_cache,
        load_vocabulary,
    )
}
"""In the forward pass of one step."""
IN_LOADER_WORKERS = ("fetch_from_archive", "write_past_shared_memory")


class Samples(torch.utils.data.Dataset):
    """Numbers. Of this data set, ``fault`` may make one that hangs, kills, is slow, or holds a NaN."""

    def __init__(self, fault: str | None) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.fault in IN_LOADER_WORKERS and index % 200 == 199:
            globals()[self.fault]()
        if self.fault == "decode_slowly":
            decode_slowly()
        x = torch.full((8,), index / NUM_SAMPLES)
        if self.fault == "not_a_number" and index % 200 == 199:
            x[3] = torch.nan
        return x, x.sum().reshape(1)


class Net(nn.Module):
    """A small network, which ``fault`` may make another one than the other ranks have."""

    def __init__(self, fault: str | None) -> None:
        super().__init__()
        self.fault = fault
        self.body, self.head, self.spare = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1)
        if fault == "another_format":
            self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x.to(self.body.weight.dtype)).relu()
        if self.fault == "slow_layer":
            features = SlowLayer.apply(features)
        spare = 0.0 if self.fault == "unused_layer" else self.spare(features)
        return self.head(features) + spare


def before_loop(name: str, fault: str | None) -> None:
    """Called on all ranks, before the loop."""
    if name in TOGETHER:
        GROUPS.extend(dist.new_group() for _ in range(2))


def in_forward(fault: str | None, step: int) -> None:
    """Called before each forward pass."""
    if fault in ONCE and step == AT_STEP:
        ONCE[fault]()
    if fault == "compile_long" and step == 1:
        compile_long()
    if fault == "slow_forward":
        time.sleep(0.03)


def after_backward(fault: str | None) -> None:
    """Called between each backward pass and the optimizer's step."""
    if fault == "clip_slowly":
        time.sleep(0.03)


def after_step(name: str, fault: str | None, step: int, model: nn.Module) -> bool:
    """Called at the end of each step; False: leave the loop."""
    if fault in BETWEEN_STEPS and step == AT_STEP:
        BETWEEN_STEPS[fault]()
    if fault == "write_images":
        write_images()
    if name in TOGETHER and step == AT_STEP:
        TOGETHER[name](fault is not None)
    if fault in AT_THE_END and step == AT_STEP:
        AT_THE_END[fault]()
    if fault == "nudge_weights" and step == AT_STEP:
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
    if name == "train_long":
        time.sleep(0.15)
    return not (step == AT_STEP and (fault == "leave_the_loop" or name in AT_THE_END))
