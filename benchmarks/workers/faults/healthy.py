"""Healthy runs: ranks wait for a while, and no report should say that the run is stuck or a rank
slow."""

from __future__ import annotations

import concurrent.futures
import ctypes
import hashlib
import multiprocessing
import os
import pdb
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from faults.calls import OTHERS
from faults.moments import AFTER_STEP, BEFORE_JOINING, EACH_STEP, FIRST_FORWARD, IN_FORWARD, ON_ALL_RANKS, at


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        x = torch.randn(64, 64)
        x = x @ x
        x = x.relu()


@at(IN_FORWARD)
def evaluate_long() -> None:
    compute(20)


@at(FIRST_FORWARD)
def compile_long() -> None:
    compute(20)


@at(IN_FORWARD)
def save_long() -> None:
    with tempfile.TemporaryFile(dir=".") as file:
        end = time.monotonic() + 15
        while time.monotonic() < end:
            file.seek(0)
            torch.save(torch.zeros(1 << 20), file)
            os.fsync(file.fileno())


@at(IN_FORWARD)
def debug() -> None:
    """Waits at a debugger's prompt."""
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
"""How long what follows keeps the other ranks waiting, about. It happens on one rank, between two
steps."""


def compress(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        zlib.compress(os.urandom(1 << 20))


@at(AFTER_STEP)
def run_tool() -> None:
    """Another program computes."""
    code = f"import os, time, zlib; e = time.time() + {TOOK_S}\nwhile time.time() < e: zlib.compress(os.urandom(1 << 20))"
    subprocess.run([sys.executable, "-c", code], check=True)


@at(AFTER_STEP)
def tokenize_in_pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(compress, [TOOK_S / 2] * 4, chunksize=1)


@at(AFTER_STEP)
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


@at(AFTER_STEP)
def evaluate_batches() -> None:
    """Batches arrive, and take no time themselves."""
    for batch in own_loader(Pictures(int(TOOK_S / 0.08), read_s=0.08)):
        batch.mean()


@at(AFTER_STEP)
def evaluate_here() -> None:
    """The same without workers: a loop that sleeps at one line."""
    pictures = Pictures(int(TOOK_S / 0.08), read_s=0.08)
    for batch in torch.utils.data.DataLoader(pictures, 16, generator=torch.Generator()):
        batch.mean()


@at(AFTER_STEP)
def wait_for_first_batch() -> None:
    next(iter(own_loader(Pictures(16, decode_s=TOOK_S / 16))))


@at(AFTER_STEP)
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


@at(AFTER_STEP)
def add_up() -> None:
    """One line, which holds the interpreter lock."""
    count = _rounds(lambda count: sum(range(count)), 3_000_000)
    sum(range(count))


@at(AFTER_STEP)
def derive_key() -> None:
    """One line, which does not."""
    count = _rounds(lambda count: hashlib.pbkdf2_hmac("sha256", b"key", b"salt", count), 100_000)
    hashlib.pbkdf2_hmac("sha256", b"key", b"salt", count)


@at(AFTER_STEP)
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


@at(AFTER_STEP)
def poll_for_job() -> None:
    end = time.monotonic() + TOOK_S
    while time.monotonic() < end:
        time.sleep(0.5)


# A rank that is late, long steps, and steps of which the ranks' differ


@at(BEFORE_JOINING)
def begin_late() -> None:
    """It copies its data to this machine first."""
    time.sleep(20)


@at(AFTER_STEP)
def evaluate_slow_batches() -> None:
    """A batch arrives each 1.3 s."""
    for batch in own_loader(Pictures(13 * 16, read_s=0.08)):
        batch.mean()


@at(AFTER_STEP)
def evaluate_slow_batches_here() -> None:
    for batch in torch.utils.data.DataLoader(Pictures(13 * 16, read_s=0.08), 16, generator=torch.Generator()):
        batch.mean()


@at(AFTER_STEP)
def compile_in_subprocess() -> None:
    """Waits for another program, such as a compiler, once per file."""
    code = "import time, zlib\ne = time.time() + 4\nwhile time.time() < e: zlib.compress(bytes(1 << 20))"
    for _ in range(4):
        subprocess.run([sys.executable, "-c", code], check=True)


@at(EACH_STEP)
def save_often(step: int) -> None:
    """Quickly, about each 5 s."""
    if step % 30 == 0:
        with Path("state.pt").open("wb") as file:
            torch.save(torch.zeros(1 << 18), file)
            os.fsync(file.fileno())


@at(ON_ALL_RANKS)
def hold_interpreter(is_culprit: bool) -> None:
    """Steps of 3 s, all in one call that holds the interpreter lock, on all ranks."""
    for _ in range(5):
        hold(3.0)
        dist.barrier()


def hold(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@at(ON_ALL_RANKS)
def train_in_subset(is_culprit: bool) -> None:
    """The ranks of a group have something to do with each other, for which the third waits."""
    if not is_culprit:
        for _ in range(int(TOOK_S / 0.2)):
            time.sleep(0.2)
            dist.all_reduce(torch.zeros(4), group=OTHERS[0])
    dist.barrier()


@at(ON_ALL_RANKS)
def accumulate_unevenly(is_culprit: bool) -> None:
    """In each step another rank has three times as much to do."""
    for step in range(30):
        for _ in range(6 if (step + dist.get_rank()) % dist.get_world_size() == 0 else 2):
            compute(0.1)
        dist.all_reduce(torch.zeros(100))


@at(ON_ALL_RANKS)
def compute_alone(is_culprit: bool) -> None:
    """Computes on each rank for 90 s without communication; no rank waits."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        compute(0.2)
        time.sleep(0.8)
