"""Watches a launch: kills the ranks at a given moment, or when the time is up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from lockstep._launch.server import ForkServer
from lockstep._tools.explain.rank_reports import grouped, title
from lockstep._tools.explain.reading import read_reports, run_joined
from lockstep.testing import _ranks as ranks

_EVERY_S = 0.02


class Watch(threading.Thread):
    """A thread that watches until ``close`` is called.

    Args:
        server: the fork server, whose children are the ranks.
        private_dir: the private directory of the launch.
        deadline: the deadline, in the time of ``time.monotonic``.
        kill_when: a condition; when it is true, all ranks are killed.
    """

    def __init__(
        self, server: ForkServer, private_dir: Path, deadline: float, kill_when: Callable[[], bool] | None = None
    ) -> None:
        super().__init__(name="lockstep-test", daemon=True)
        self._server = server
        self._private_dir = private_dir
        self._deadline = deadline
        self._kill_when = kill_when
        self._is_over = threading.Event()
        self.has_killed = False
        """Whether the ranks were killed because ``kill_when`` was true."""
        self.at_limit: list[str] | None = None
        """Where each rank was when the time was up, in lines; None: it is not up."""

    def close(self) -> None:
        """Stops watching."""
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Checks the conditions repeatedly."""
        while not self._is_over.wait(_EVERY_S):
            if self._kill_when is not None and self._kill_when():
                self.has_killed, self._kill_when = True, None
            if time.monotonic() > self._deadline and self.at_limit is None:
                self.at_limit = list(_where(self._private_dir))
            if self.has_killed or self.at_limit is not None:
                self._kill()

    def _kill(self) -> None:
        """Sends SIGKILL to all ranks that were started. Repeated while more are starting."""
        with contextlib.suppress(psutil.Error):  # it has ended
            server = psutil.Process(self._server.pid)
            for rank in server.children():
                with contextlib.suppress(psutil.Error):
                    rank.kill()
            if not self._server.is_ready:  # torch is being imported, and nothing was started
                server.kill()


def _where(private_dir: Path) -> Iterator[str]:
    """Where the ranks of a launch are, from their black boxes."""
    with contextlib.suppress(Exception):  # that time is up is an error also without this
        starts = list(private_dir.glob("start-*"))
        where = (run_joined(starts[0]) or starts[0]) if starts else private_dir
        reports = read_reports(where, time.time())
        for group in grouped(reports):
            of = f" of {group[0].record['world_size']}"
            yield f"{title(group, of)}: {group[0].describe()}"
            stack = group[0].stack()
            # a line, and its source: what calls the function
            if stack and stack[0].startswith(f"{ranks.__file__}:"):
                stack = stack[2:]
            yield from (f"  {line}" for line in stack)
