"""Contenders whose processes live through the whole benchmark and work only in their turns.

A crew is the one process or the several processes of a contender. They start, warm up and report
that they are ready. After that, each waits in a read, which uses no processor time, until the
benchmark starts a turn, and then replies with its measurement. So only one contender runs at a
time, and no measurement includes a start.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, TypeVar

WORKERS = Path(__file__).parent / "workers"

# Whoever starts the benchmark (a launcher, say) must not be taken for the one who starts the
# contenders.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def clean_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment for a contender: one thread per process, and Gloo on
    loopback for all contenders."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("LOCKSTEP_", "TORCHELASTIC_"))
    }
    return {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(extra or {})}


@dataclass(frozen=True)
class Turn:
    """The measurements of one process in one turn."""

    wall_s: float
    cpu_s: float
    """The processor time of all threads, which does not grow while others have the cores."""
    peak_rss_bytes: int
    """The peak memory of the process so far."""


@dataclass(frozen=True)
class Host:
    """The place where a process runs: a separate network on this machine."""

    prefix: Sequence[str]
    """What starts a command there."""
    address: str
    interface: str


class Crew:
    """The processes of one contender.

    Args:
        name: for messages.
        worker: a script in ``workers/``.
        args: its arguments.
        nproc: the number of processes. Several meet as torchrun's do; independent ones do not.
        independent: whether each process is a separate world.
        hosts: where each process runs, if not all on this machine's loopback.
        more_args: for each process, if they differ.
    """

    def __init__(
        self,
        name: str,
        worker: str,
        args: Sequence[str],
        nproc: int = 1,
        *,
        independent: bool = False,
        hosts: Sequence[Host] = (),
        more_args: Sequence[Sequence[str]] = (),
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the crew
        self._processes: list[subprocess.Popen[str]] = []
        self._is_working = True
        # Bound, not listening: the workers' store can still have the port, and nobody else is given
        # it meanwhile.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("", 0))
        for rank in range(nproc):
            self._processes.append(
                subprocess.Popen(
                    [
                        *(hosts[rank].prefix if hosts else ()),
                        sys.executable,
                        str(WORKERS / worker),
                        *args,
                        *(more_args[rank] if more_args else ()),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    text=True,
                    env=clean_environ(None if independent or nproc == 1 else self._world(rank, nproc, hosts)),
                )
            )

    def _world(self, rank: int, nproc: int, hosts: Sequence[Host]) -> dict[str, str]:
        elsewhere = {"MASTER_ADDR": hosts[0].address, "GLOO_SOCKET_IFNAME": hosts[rank].interface} if hosts else {}
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port.getsockname()[1]),
            "TORCHELASTIC_RUN_ID": "benchmark",
            **elsewhere,
        }

    @property
    def pids(self) -> list[int]:
        """Of its processes, by rank."""
        return [process.pid for process in self._processes]

    def wait_ready(self) -> None:
        """Return when every process has warmed up."""
        self._answers()

    def turn(self) -> list[Turn]:
        """One turn: what each process measured."""
        self._is_working = True
        for process in self._processes:
            _stream(process.stdin).write("go\n")
            _stream(process.stdin).flush()
        return self._answers()

    def _answers(self) -> list[Turn]:
        answers = [self._answer(process) for process in self._processes]
        self._is_working = False
        return answers

    def _answer(self, process: subprocess.Popen[str]) -> Turn:
        line = _stream(process.stdout).readline()
        if line:
            return Turn(*json.loads(line))
        self._errors.seek(0)
        raise SystemExit(f"{self.name} ended before its time. Its last words:\n{self._errors.read()[-4000:]}")

    def close(self) -> None:
        """Ends the processes: in the middle of a turn immediately, and otherwise after a few
        seconds in which they can exit."""
        for process in self._processes:
            if self._is_working:
                process.kill()
            _stream(process.stdin).close()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _stream(process.stdout).close()
        self._port.close()
        self._errors.close()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # it was asked for as a pipe
    return stream


class AnyCrew(Protocol):
    """What takes turns, however its processes were started."""

    name: str

    def wait_ready(self) -> None: ...
    def turn(self) -> list[Turn]: ...
    def close(self) -> None: ...


_One = TypeVar("_One", bound=AnyCrew)


class Crews:
    """All contenders of a benchmark: ``with Crews(say) as crews``, and none outlives the block, nor
    SIGTERM."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._all: list[AnyCrew] = []

    def start(self, crew: _One) -> _One:
        """Have a crew closed with the others."""
        self._all.append(crew)
        return crew

    def wait_ready(self) -> None:
        """Return when all have warmed up."""
        self._say(f"starting {', '.join(crew.name for crew in self._all)} ...")
        for crew in self._all:
            crew.wait_ready()

    def __enter__(self) -> Crews:
        self._before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for crew in self._all:
            crew.close()
        signal.signal(signal.SIGTERM, self._before)
