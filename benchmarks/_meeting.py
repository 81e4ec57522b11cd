"""Launchers of many machines that meet: in threads of a few processes, with the launchers' own
rendezvous and heartbeat over PyTorch's TCP store on loopback. They start no workers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass

from _crew import WORKERS, clean_environ

LOCKSTEP, STORE = "lockstep", "store"
LIMIT_S = 60.0
"""The seconds after which a meeting has failed."""
_QUIET = {"RES_OPTIONS": "attempts:0"}
"""PyTorch's client asks for the name of each address that it connects to, and waits 5 s for a name
server that is silent."""


@dataclass(frozen=True)
class Meeting:
    """What a meeting took."""

    wall_s: float
    """From the first host's first connection until the last host knows its place."""
    cpu_s: float
    """Processor time of all hosts and the store meanwhile."""
    requests: float
    """To the store, of a host in the middle, without its heartbeats."""


def meet(num_hosts: int, how: str) -> Meeting | None:
    """Let hosts with numbers (``--node-rank``) meet; None: they have not within the limit.

    Args:
        how: see ``workers/meeting.py``.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    num_others = min(num_hosts - 1, os.cpu_count() or 1)
    command = [sys.executable, str(WORKERS / "meeting.py"), how, str(port), str(num_hosts)]
    processes = [
        subprocess.Popen(
            [*command, str(first), str(num_others)],
            env=clean_environ(_QUIET),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for first in range(num_others + 1)
    ]

    def kill() -> None:
        for process in processes:
            process.kill()

    limit = threading.Timer(LIMIT_S, kill)
    try:
        for process in processes:
            _read(process)
        limit.start()
        for process in processes:
            _tell(process)
        lines = [_read(process) for process in processes]
    finally:
        limit.cancel()
        kill()
        for process in processes:
            process.communicate()
    if not all(lines):
        return None
    found = [json.loads(line) for line in lines]
    errors = [error for each in found for error in each["errors"]]
    if errors:
        raise SystemExit(f"{num_hosts} hosts did not meet: {errors[0]}")
    requests = sorted(number for each in found for number in each["requests"])
    return Meeting(
        wall_s=max(each["ended_at"] for each in found) - min(each["began_at"] for each in found),
        cpu_s=sum(each["cpu_s"] for each in found),
        requests=requests[len(requests) // 2],
    )


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
