"""The destinations of the workers' output: the launcher's own, log files, or lines prefixed with
ranks."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import selectors
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from lockstep._base.errors import ConfigError
from lockstep._base.nofollow import open_to_write

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")

Sink = Callable[[int, bool, bytes], None]
"""Called with the rank, whether it was standard error, and a complete line."""


@dataclass(frozen=True, kw_only=True)
class OutputPlan:
    """The places to which the output of the ranks goes, as the user requested."""

    log_dir: Path | None = None
    """A directory for each rank's output, in ``rank-<R>.log``."""
    tee: bool = False
    """Whether lines go to the terminal, each with its rank, also if there is a log directory."""
    attach: int | None = None
    """The rank that gets the terminal, input and output. None: rank 0 gets the input, if that is no
    terminal."""
    sink: Sink | None = None
    """Receives lines instead of the terminal (for notebooks, whose cells are not files)."""

    @property
    def on_terminal(self) -> bool:
        """Whether the output of rank 0 reaches a terminal unchanged."""
        piped = self.log_dir is not None or self.tee or self.sink is not None
        return (not piped or self.attach == 0) and os.isatty(1)


class Streams:
    """The standard streams of workers. Enter it, pass ``for_rank`` to each worker, call
    ``handed_over``, then ``drain``.

    Args:
        plan: the requested output.
        continuation: a line to add to each log, which is then continued; empty: begin new logs.
    """

    def __init__(self, ranks: Collection[int], plan: OutputPlan, *, continuation: str = "") -> None:
        self._plan = plan
        self._goes_on = continuation
        self._given: list[int] = []  # descriptors that only workers need
        self._pump = _Pump()
        self._logs: dict[int, BinaryIO] = {}
        self._ranks = ranks

    def __enter__(self) -> Streams:
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._given.append(self._null)
        if self._plan.log_dir is not None:
            try:
                self._plan.log_dir.mkdir(parents=True, exist_ok=True)
                for rank in self._ranks:
                    # Unbuffered: workers without --tee write to the same descriptor.
                    path = log_path(self._plan.log_dir, rank)
                    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self._goes_on else os.O_TRUNC)
                    self._logs[rank] = io.FileIO(open_to_write(path, flags), "ab" if self._goes_on else "wb")
                if self._goes_on:  # what is there may end in the middle of a line
                    self.append(dict.fromkeys(self._logs, f"\n{self._goes_on}\n"))
            except OSError as error:
                raise ConfigError(
                    f"--log-dir {self._plan.log_dir} cannot be written: {error}", code="log-dir-unwritable"
                ) from error
        return self

    def for_rank(self, rank: int) -> tuple[int, int, int]:
        """Descriptors of standard input, output and error for a worker."""
        plan = self._plan
        if rank == plan.attach:
            return (0, 1, 2)
        # A pipe or a file goes to rank 0, which may pass its contents on. A terminal goes to a rank
        # only on request: otherwise a breakpoint() on all ranks would stop one of them.
        has_input = rank == 0 and plan.attach is None and plan.sink is None and not os.isatty(0)
        stdin = 0 if has_input else self._null
        if plan.tee or plan.sink is not None:
            return (stdin, self._pipe(rank, is_error=False), self._pipe(rank, is_error=True))
        if rank in self._logs:
            log = self._logs[rank].fileno()
            return (stdin, log, log)
        return (stdin, 1, 2)

    def handed_over(self) -> None:
        """Closes the workers' descriptors here, once they have them, so that pipes end when workers
        do; start reading."""
        self._close_given()
        if self._pump.takers:
            self._pump.start()

    def drain(self, give_up: Callable[[], bool]) -> None:
        """Waits until all that the workers have written is passed on, however slow the terminal; at
        most a second once ``give_up()`` is true.

        The workers have exited: processes that they left on purpose, and that keep the pipes open,
        are not waited for."""
        self._pump.finish()
        deadline = math.inf
        while self._pump.is_alive() and time.monotonic() < deadline:
            self._pump.join(0.05)
            if deadline == math.inf and give_up():
                deadline = time.monotonic() + 1.0

    def append(self, texts: Mapping[int, str]) -> None:
        """Appends texts to the logs of these ranks, if there are logs."""
        for rank, text in texts.items():
            if rank in self._logs:
                self._logs[rank].seek(0, os.SEEK_END)
                self._logs[rank].write(text.encode(errors="backslashreplace"))

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._close_given()
        self._pump.stop()
        for log in self._logs.values():
            log.close()

    def _close_given(self) -> None:
        while self._given:
            os.close(self._given.pop())

    def _pipe(self, rank: int, *, is_error: bool) -> int:
        read_end, write_end = os.pipe()
        log = self._logs.get(rank)
        sink = self._plan.sink or _to_terminal

        def take(line: bytes) -> None:
            if log is not None:
                log.write(line)
            sink(rank, is_error, line)

        self._pump.takers[read_end] = take
        self._given.append(write_end)
        return write_end


class _Pump(threading.Thread):
    """A thread that reads pipes and passes on complete lines. (Not the main one, since a terminal
    may block: Ctrl-S, a pager.)"""

    def __init__(self) -> None:
        super().__init__(name="lockstep-output", daemon=True)
        self.takers: dict[int, Callable[[bytes], None]] = {}
        """The functions to call with each line, by descriptor of the pipe. Complete before the
        start."""
        self._is_last = self._is_over = False

    def finish(self) -> None:
        """Ends the thread once the pipes are empty."""
        self._is_last = True

    def stop(self) -> None:
        """Ends the thread without waiting for further output."""
        self._is_over = True
        if self.ident is not None:
            self.join(0.5)
            return
        for fd in self.takers:
            os.close(fd)

    def run(self) -> None:
        """Copies what comes until all writers have closed their ends, or it is asked to stop."""
        pending = dict.fromkeys(self.takers, b"")  # by open descriptor, the beginning of a line
        with selectors.DefaultSelector() as selector:
            for fd in self.takers:
                selector.register(fd, selectors.EVENT_READ)
            while pending and not self._is_over:
                is_last = self._is_last  # before the look: what was written until then is seen
                ready = selector.select(timeout=0.0 if is_last else 0.2)
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    pending[key.fd] = self._pass_on(key.fd, pending[key.fd] + data, is_last=not data)
                    if not data:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        del pending[key.fd]
                if is_last and not ready:
                    break
        for fd, rest in pending.items():
            self._pass_on(fd, rest, is_last=True)
            os.close(fd)

    def _pass_on(self, fd: int, data: bytes, *, is_last: bool) -> bytes:
        """Passes on complete lines; returns the rest. The carriage return of a progress bar ends a
        line too."""
        end = 0
        for match in _LINE.finditer(data):
            self._take(fd, match.group())
            end = match.end()
        rest = data[end:]
        if rest and is_last:
            self._take(fd, rest + b"\n")
            return b""
        return rest

    def _take(self, fd: int, line: bytes) -> None:
        # A closed terminal (`| head`) or a full disk must not stop the reading: workers would
        # block.
        with contextlib.suppress(OSError, ValueError):
            self.takers[fd](line)


def leave_bar(*, is_killed: bool) -> None:
    """Undoes what the progress bar of a worker that was killed leaves on the terminal: a hidden
    cursor, at the end of the bar."""
    with contextlib.suppress(OSError):
        os.write(1, b"\x1b[?25h\n" if is_killed else b"\x1b[?25h")


def log_path(log_dir: Path, rank: int) -> Path:
    """The log of a rank."""
    return log_dir / f"rank-{rank}.log"


def _to_terminal(rank: int, is_error: bool, line: bytes) -> None:
    text = line.rstrip(b"\r\n")
    # A progress bar writes carriage returns in a row: what is empty between them is no line.
    if text or line == b"\n":
        # In one write with its newline, so that lines of other writers do not get into it.
        data = b"[rank %d] %s\n" % (rank, text)
        target = 2 if is_error else 1
        while data:
            data = data[os.write(target, data) :]


def to_python_stdout(rank: int, is_error: bool, line: bytes) -> None:
    """A ``Sink`` for notebooks: writes to the current ``sys.stdout`` or ``sys.stderr``."""
    stream = sys.stderr if is_error else sys.stdout
    stream.write(line.decode(errors="backslashreplace"))
    stream.flush()
