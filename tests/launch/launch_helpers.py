"""What tests of the launcher share besides fixtures."""

import contextlib
import socket
import time
from pathlib import Path

MEET = """
import os, torch, torch.distributed as dist
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(
    "gloo", store=dist.FileStore(os.environ["LOCKSTEP_STORE"], SIZE), rank=RANK, world_size=SIZE
)
one = torch.ones(1)
dist.all_reduce(one)
"""


def until(condition, timeout_s=100.0):
    """Wait until ``condition()`` is true; returns it."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def read_pids(directory):
    """All pids that a script left as names of files ``pid-<N>``."""
    return {int(path.name[4:]) for path in directory.glob("pid-*")}


@contextlib.contextmanager
def listening(address="127.0.0.1"):
    """A port that somebody listens on, who never answers."""
    with socket.create_server((address, 0)) as server:
        yield server.getsockname()[1]


def free_port(address="127.0.0.1"):
    """A port of this machine that nobody has now."""
    with socket.socket() as free:
        free.bind((address, 0))
        return free.getsockname()[1]
