"""This machine's workers for one round: started, watched and ended as on one machine, in a thread of their own."""

from __future__ import annotations

import threading
import time

from lockstep.errors import LaunchError
from lockstep.launch import ending, failures
from lockstep.launch.exchange import Exchange
from lockstep.launch.failures import Failure
from lockstep.launch.local import run_once
from lockstep.launch.output import OutputPlan
from lockstep.launch.server import ForkServer
from lockstep.launch.signals import Interrupts
from lockstep.launch.spec import LaunchSpec
from lockstep.launch.supervise import Outcome

_OWN_WAY_S = 0.5
"""How long workers may take to notice by themselves that others are gone. (If one has failed, that must not be covered up.)"""


class Workers:
    """Starts them at once. ``server`` is theirs until they have ended."""

    def __init__(self, spec: LaunchSpec, server: ForkServer, plan: OutputPlan, exchange: Exchange) -> None:
        self.spec = spec
        self._exchange = exchange
        self._server = server
        self._plan = plan
        self._interrupts = Interrupts(())
        self._outcome: Outcome | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="lockstep-workers", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there are any."""
        return self._thread.is_alive()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Once they have ended: which of them failed, the first first; none if all is well, or they were stopped."""
        if self._error is not None:
            raise self._error
        return self._outcome.failures if self._outcome else ()

    @property
    def stopped_with(self) -> int | None:
        """Once they have ended: the status with which the run has saved itself, or could not (``lockstep.stopping``)."""
        return self._outcome.stopped_with if self._outcome else None

    @property
    def is_stopping(self) -> bool:
        """Whether they end, or have ended, because they were stopped. False: the signal was the script's, which continues."""
        if self.is_running:
            return bool(self._interrupts.received)
        return self._outcome is not None and (self._outcome.stopped_by or self.stopped_with) is not None

    @property
    def was_cut_short(self) -> bool:
        """Once they have ended: whether the run was to save itself, and was not waited for."""
        return self._outcome is not None and self._outcome.was_cut_short

    def stop(self, number: int, *, at_once: bool = False) -> None:
        """Have them end as this signal would, saving the run if they do that; does not wait for it. A second time: kill them.

        ``at_once``: else those that are ending by themselves may do that first, and tell why.
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

    def wait(self) -> None:
        """Until none is left."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._interrupts:
                self._outcome = run_once(self.spec, self._server, self._plan, self._interrupts, self._exchange)
        except LaunchError as error:  # they could not be started
            failure = failures.from_exception(self.spec.ranks.start, error)
            self._outcome = Outcome(failures=(failure,), stopped_by=None, spec=self.spec)
        except Exception as error:
            self._error = error
