"""A command in a separate directory, observed while it runs: its output, its reports, and the
moment at which its fault showed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from _crew import clean_environ

REPORTS = "reports"
"""The file in the command's directory to which reports are added: an argument for ``lockstep run
--reports``."""
_MARK = "BENCHMARK_COMMAND"
"""An environment variable that marks all processes of a command, including orphans."""
_PAUSE_S = 0.1


class Watched:
    """A running command."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.process = process
        self.directory = directory

    @property
    def text(self) -> str:
        """What was printed so far."""
        return (self.directory / "printed").read_text(errors="replace")

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What lockstep has reported so far, in this order."""
        try:
            lines = (self.directory / REPORTS).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def fault_at(self) -> float | None:
        """When the fault showed, in the time of ``time.time``; None: not yet."""
        try:
            return float((self.directory / "fault-at").read_text() or "nan")
        except FileNotFoundError:
            return None

    def looks(self, limit_s: float) -> Iterator[None]:
        """Looks repeatedly, and a last time after the command has exited or the time is up."""
        end = time.monotonic() + limit_s
        while self.process.poll() is None and time.monotonic() < end:
            yield
            time.sleep(_PAUSE_S)
        yield


@contextmanager
def watched(command: Sequence[str], extra_environ: Mapping[str, str] | None = None) -> Iterator[Watched]:
    """Start a command; none of its processes, and nothing that it has written, outlives the
    block."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "tmp").mkdir()
        environ = clean_environ({"TMPDIR": f"{scratch}/tmp", _MARK: mark, **(extra_environ or {})})
        with (directory / "printed").open("wb") as printed:
            process = subprocess.Popen(
                command,
                cwd=scratch,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Watched(process, directory)
        finally:
            while members := list(_marked(mark)):
                for member in members:
                    member.kill()
                psutil.wait_procs(members, timeout=1)
            process.wait()


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark:
                yield process
        except psutil.Error:
            continue
