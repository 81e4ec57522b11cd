"""The launcher's observer (``lockstep._launch.observer``), which explains what goes wrong."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep._base.reports import Report, is_noted, note, num_noted, publish
from lockstep._base.stopping import say
from lockstep._launch.failures import Failure
from lockstep._launch.observer import JoinedRun, Launch, Observer
from lockstep._tools.explain.launching.alone import Alone
from lockstep._tools.explain.launching.causes import Causes
from lockstep._tools.explain.launching.compared_calls import ComparedCalls
from lockstep._tools.explain.saved_files import SavedFiles

if TYPE_CHECKING:
    from lockstep._tools.explain.launching.slow import SlowWatch
    from lockstep._tools.explain.launching.watching import Watching

# What else is needed is imported when it is: not while the processes start.

_LOOK_S = 1.0
_FIRST_S = 2.0
"""Delay of the first look: a start keeps the launcher busy."""


class Explainer(Observer):
    """Watches the ranks in a separate thread, and explains from their black boxes why they fail or
    do not exit."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self._dir = Path(launch.private_dir)
        self._calls = ComparedCalls(self._dir, launch.ranks, self._publish)
        self._mismatch: Report | None = None
        self._before = num_noted()
        """The size of the file of reports when this launch began."""
        self._statuses: dict[int, int] = {}
        self._causes = Causes()
        self._alone = Alone(launch)
        self._saved = SavedFiles(self._dir)
        self._closed = threading.Event()
        if launch.world_size > 1:
            threading.Thread(target=self._run, name="lockstep-watch", daemon=True).start()

    def close(self) -> None:
        """Stop looking, after a last look at what the ranks have called and saved: brief ones exit
        before any other look."""
        with contextlib.suppress(Exception):
            self._look_at_saves()
        if not any(self._statuses.values()):
            with contextlib.suppress(Exception):
                self._calls.look(is_over=True)
        with contextlib.suppress(Exception):
            self._note_what_was_told()
        self._closed.set()
        self._calls.close()

    def _note_what_was_told(self) -> None:
        """Note the report that was printed with the failures, unless it is noted already."""
        explained = self._watching.explained if any(self._statuses.values()) else None
        told = self._mismatch or explained
        if told is not None and not is_noted(told, since=self._before):
            note(told)

    def ended(self, rank: int, status: int) -> None:
        """Note the worker's exit status in its black box."""
        from lockstep._tools.explain.black_box import note_status

        self._statuses[rank] = status
        note_status(self._dir, rank, status)
        self._publish(self._alone.ended(rank, status))

    def with_cause(self, failure: Failure) -> Failure | None:
        """Returns the failure with the cause that this machine's memory and the failure's text
        show."""
        return self._causes.name(failure)

    def last_seen(self, rank: int) -> str:
        """Returns what the rank's black box has."""
        from lockstep._tools.explain.last_seen import last_seen
        from lockstep._tools.explain.reading import run_joined

        return last_seen(run_joined(self._dir) or self._dir, rank)

    def joined(self) -> JoinedRun | None:
        """Returns the newest checkpoint of the run that all ranks have joined."""
        from lockstep._state.checkpoint.store import Store, step_of
        from lockstep._tools.explain.reading import run_joined

        if (run_dir := run_joined(self._dir)) is None:
            return None
        newest = Store(run_dir).newest()
        return JoinedRun(None if newest is None else step_of(newest))

    def who_waits(self, echoes: Collection[int]) -> str:
        """Compares the black boxes of all ranks."""
        return self._watching.explain(echoes)

    def mismatch(self, reported: Sequence[Failure]) -> str:
        """Compares what the ranks have called, and the tracebacks."""
        from lockstep._tools.explain.launching.failed_calls import report_of

        report = report_of(reported, self._calls, self._watching.where)
        self._mismatch = report or self._mismatch  # more is known with each failure
        return "" if report is None else report.text

    def linger(self, ranks: Collection[int]) -> Collection[int]:
        """Reports what their black boxes name."""
        from lockstep._tools.explain.launching.lingering import report_lingering

        return report_lingering(self._dir, ranks)

    @functools.cached_property
    def _watching(self) -> Watching:
        from lockstep._tools.explain.launching.watching import Watching
        from lockstep._tools.explain.stall_notices import StallNotices

        return Watching(self.launch, StallNotices(self._publish, self._say))

    @functools.cached_property
    def _slow(self) -> SlowWatch:
        from lockstep._tools.explain.launching.slow import SlowWatch

        return SlowWatch(self.launch, self._publish)

    def _publish(self, report: Report | None) -> None:
        if report is not None and not self._closed.is_set():
            publish(report)

    def _say(self, text: str) -> None:
        if not self._closed.is_set():
            say(text)

    def _run(self) -> None:
        self._closed.wait(_FIRST_S)
        while not self._closed.wait(_LOOK_S):
            for look in (
                self._look_for_waits,
                self._look_for_slow,
                self._look_for_alone,
                self._look_at_calls,
                self._look_at_saves,
            ):
                # no error here may affect the workers, nor what else is looked for
                with contextlib.suppress(Exception):
                    look()

    def _look_for_waits(self) -> None:
        self._watching.look()

    def _look_for_slow(self) -> None:
        self._slow.look()

    def _look_for_alone(self) -> None:
        self._publish(self._alone.look())

    def _look_at_saves(self) -> None:
        self._publish(self._saved.look())

    def _look_at_calls(self) -> None:
        self._calls.look(is_over=False)
