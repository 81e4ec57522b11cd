"""This machine's workers for one round: started, watched and ended as on one machine, in a separate
thread."""

from __future__ import annotations

import signal
import threading
import time

from lockstep._base.errors import LaunchError
from lockstep._launch import ending, failures
from lockstep._launch.failures import Failure
from lockstep._launch.local import run_once
from lockstep._launch.output import OutputPlan
from lockstep._launch.server import ForkServer
from lockstep._launch.signals import Interrupts
from lockstep._launch.spec import LaunchSpec
from lockstep._launch.supervise import LaunchResult

_OWN_WAY_S = 0.5
"""Seconds that workers get to notice the loss of others themselves. (A failure must not be hidden
by an interrupt.)"""


class Workers:
    """The workers, started immediately. ``server`` must not be used until they have exited."""

    def __init__(self, spec: LaunchSpec, server: ForkServer, plan: OutputPlan) -> None:
        self.spec = spec
        self._server = server
        self._plan = plan
        # Of no signals: the launcher's main thread handles them, and the agent passes them on by
        # `tell`.
        self._interrupts = Interrupts(())
        self.outcome = LaunchResult(failures=(), stopped_by=None, spec=spec)
        """The result of their launch; before they exit, a result without failures."""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="lockstep-workers", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether any of them may be running."""
        return self._thread.is_alive()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Once they have exited: the failures, the cause first; empty if all ended successfully, or
        were stopped."""
        if self._error is not None:
            raise self._error
        return self.outcome.failures

    @property
    def is_stopping(self) -> bool:
        """Whether they are exiting, or exited, because they were stopped."""
        if self.is_running:
            return bool(self._interrupts.received)
        return (self.outcome.stopped_by or self.outcome.stopped_with) is not None

    def stop(self, number: int, *, at_once: bool = False) -> None:
        """Stops them as this signal would, saving the run if they do that. Does not wait; a second
        call kills them.

        ``at_once``: False: workers that are ending by themselves get a moment to report why.
        """
        deadline = time.monotonic() + (0.0 if at_once else _OWN_WAY_S)
        while self.is_running and not (is_ending := ending.is_marked(self.spec.private_dir)):
            if time.monotonic() >= deadline:
                break
            self._thread.join(0.02)
        else:
            is_ending = True
        if at_once or not is_ending:
            self._interrupts.tell(number)

    def end(self, *, at_once: bool = False) -> None:
        """Ends the workers without saving the run, which is no longer possible."""
        self._interrupts.may_save = False
        self.stop(signal.SIGINT, at_once=at_once)

    def wait(self) -> None:
        """Waits until they have exited."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._interrupts:
                self.outcome = run_once(self.spec, self._server, self._plan, self._interrupts)
        except LaunchError as error:  # they could not be started
            failure = failures.from_exception(self.spec.ranks.start, error)
            self.outcome = LaunchResult(failures=(failure,), stopped_by=None, spec=self.spec)
        except Exception as error:
            self._error = error
