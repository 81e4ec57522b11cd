"""Two hosts on this machine (from ``tools/cluster``, with separate addresses, names and
processes), and contenders that launchers start on both.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _crew import Turn, clean_environ

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from cluster import Cluster, Host, missing

CANNOT_RUN = 77  # what `make bench` takes for "not on this machine"
PORT = 29500  # of a host's own network: nobody else has it
_READY_S, _TURN_S, _END_S, _LOOK_S = 120.0, 300.0, 20.0, 0.5


@contextlib.contextmanager
def hosts(number: int = 2) -> Iterator[list[Host]]:
    """Starts hosts on one switch. They end, with all of their processes, after the block and with
    this process."""
    if reason := missing():
        print(f"{reason}: nothing was measured", file=sys.stderr)
        raise SystemExit(CANNOT_RUN)
    with Cluster(hosts=number) as cluster:
        yield cluster.hosts


def start(
    host: Host, command: Sequence[str], extra: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a command there, in the environment that every contender gets, and on the host's own
    network."""
    environ = clean_environ({"GLOO_SOCKET_IFNAME": "eth0", **(extra or {})})
    return host.start(["env", "-i", *(f"{name}={value}" for name, value in environ.items()), *command], **options)


class LaunchedCrew:
    """A crew (see ``_crew``) whose processes launchers start, one launcher on each host.

    Between a launcher and a terminal the lines of several processes mix, so the processes take
    their turns through named pipes, two each, in a directory that all hosts see.

    Args:
        name: for messages.
        commands: of the launchers, one for each of ``on``.
        on: the hosts.
        nproc: how many processes there are on all of them.
    """

    def __init__(self, name: str, commands: Sequence[Sequence[str]], on: Sequence[Host], nproc: int) -> None:
        self.name = name
        self._scratch = tempfile.TemporaryDirectory()
        scratch = Path(self._scratch.name)
        # Open for reading and writing: that waits for nobody, and it is the workers who see an end
        # when they are closed.
        self._orders = [_make_pipe(scratch / f"{rank}.go") for rank in range(nproc)]
        self._answers = [_make_pipe(scratch / f"{rank}.answers") for rank in range(nproc)]
        self._rest = [b""] * nproc
        self._output = (scratch / "output").open("w+")
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._output}
        self._launchers = [
            start(host, command, {"TURNS_THROUGH": str(scratch)}, cwd=scratch, **streams)
            for host, command in zip(on, commands, strict=True)
        ]

    def wait_ready(self) -> None:
        """Return when every process has warmed up."""
        self._read_all(_READY_S)

    def turn(self) -> list[Turn]:
        """One turn: what each process measured."""
        for order in self._orders:
            os.write(order, b"go\n")
        return self._read_all(_TURN_S)

    def _read_all(self, limit_s: float) -> list[Turn]:
        deadline = time.monotonic() + limit_s
        return [Turn(*json.loads(self._read(rank, deadline))) for rank in range(len(self._answers))]

    def _read(self, rank: int, deadline: float) -> bytes:
        while b"\n" not in self._rest[rank]:
            if select.select([self._answers[rank]], [], [], _LOOK_S)[0]:
                self._rest[rank] += os.read(self._answers[rank], 4096)
            elif time.monotonic() > deadline or any(launcher.poll() is not None for launcher in self._launchers):
                self._output.seek(0)
                how = "does not get on" if time.monotonic() > deadline else "ended before its time"
                raise SystemExit(f"{self.name} {how}. Its last words:\n{self._output.read()[-4000:]}")
        line, self._rest[rank] = self._rest[rank].split(b"\n", 1)
        return line

    def close(self) -> None:
        """Ends the processes, after a time in which working ones can exit."""
        for pipe in (*self._orders, *self._answers):
            os.close(pipe)
        deadline = time.monotonic() + _END_S
        for launcher in self._launchers:
            try:
                launcher.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        self._output.close()
        self._scratch.cleanup()


def _make_pipe(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)
