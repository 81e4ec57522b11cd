"""Start the workers of one launch, watch them, and end all of them together.

Ranks wait for each other in every step, so the end of one is the end of all. What makes it hard is
to name the cause: the rank that fails first closes its connections, and the others then fail within
milliseconds, with errors that name the connection. Their errors may arrive first. So a failure that
looks like a consequence (``echoes``) does not end the launch yet: the rank at fault gets a moment
to report why (``Stage.ECHO``). ``stages`` has the transitions, which are pure, and this module
carries out their actions."""

from __future__ import annotations

import contextlib
import functools
import math
import selectors
import signal
import socket
import time
from dataclasses import dataclass

from lockstep._base.errors import LaunchError
from lockstep._base.observers import Observers
from lockstep._base.reports import note
from lockstep._base.stopping import catches
from lockstep._launch import ending, failures, restarts
from lockstep._launch.explained import ExplainedFailures
from lockstep._launch.failure_reports import reports_of
from lockstep._launch.failures import Failure
from lockstep._launch.forked import ForkedWorkers
from lockstep._launch.lingering import Lingering
from lockstep._launch.messages import Receiver
from lockstep._launch.observer import JoinedRun, Launch, Observer
from lockstep._launch.output import Streams
from lockstep._launch.processes import kill_worker, sweep
from lockstep._launch.server import ForkServer
from lockstep._launch.signals import Interrupts
from lockstep._launch.spec import LaunchSpec
from lockstep._launch.stages import Action, Event, Stage, State, transition

GRACE_S = 3.0
"""Seconds that workers get to end by themselves once one of them has failed, or Ctrl-C was
pressed."""
SAVING_GRACE_S = 30.0
"""Seconds that workers get if one of them handles the signal that stopped the launcher: it may have
a state to save.

Runs that called ``lockstep.join`` get as long as ``--timeout`` if that is more: they finish their
step or evaluation first, and within that time a rank that waits for others times out anyway. (This
is the last resort: the sender of the signal has a limit as well. Slurm kills KillWait, 30 s, after
SIGTERM at a time limit; preempted jobs have GraceTime; ``--signal=USR1@120`` leaves 120 s.)
"""
RESTART_GRACE_S = 0.3
"""Seconds that workers get if all are restarted afterwards."""


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How a launch ended."""

    failures: tuple[Failure, ...]
    """The cause first; empty if all went well, or the launch was stopped."""
    stopped_by: signal.Signals | None
    """The signal that stopped the launcher; None: none did, or the run finished all the same."""
    stopped_with: int | None = None
    """The exit status of a run that was asked to stop, and saved itself or could not: see
    ``_base/stopping.py``."""
    is_unsaved: bool = False
    """Whether the run finished, but its end could not be saved."""
    was_cut_short: bool = False
    """Whether the launcher stopped waiting for a run to save itself: after a second signal, or a
    timeout."""
    joined: JoinedRun | None = None
    """The run, of a launch that has failed or was stopped; None: there is none, or that is not
    known."""
    spec: LaunchSpec
    """The specification of the last start."""


def supervise(server: ForkServer, spec: LaunchSpec, streams: Streams, interrupts: Interrupts) -> LaunchResult:
    """Runs all workers of ``spec`` until they have exited. Afterwards none of their processes
    exist, except processes that the script left on purpose if all went well (see ``sweep``).

    Raises:
        LaunchError: a worker could not be forked, or the server died.
    """
    with contextlib.closing(_Watch(server, spec, streams, interrupts)) as watch:
        succeeded = False
        try:
            watch.run()
            succeeded = not (watch.failures.by_rank or interrupts.received or watch.stopped_with)
        except BaseException as error:
            server.close()  # and with it every worker, also those that have not reported yet
            # For the process ids of workers that have just been forked: `sweep` finds sessions by
            # them.
            watch.workers.read()
            if not isinstance(error, _StoppedEarlyError):
                raise
        finally:
            sweep(watch.workers.sessions, spec.private_dir, succeeded=succeeded)
        outcome = watch.outcome()
    for report in reports_of(outcome.failures):
        note(report)
    return outcome


class _Watch:
    """A running launch: turns events into transitions (``stages``), and carries out their
    actions."""

    def __init__(self, server: ForkServer, spec: LaunchSpec, streams: Streams, interrupts: Interrupts) -> None:
        self.stopped_with: int | None = None
        """The exit status of a run that was asked to stop, once the first worker has exited with
        it."""
        self._server = server
        self._spec = spec
        self._interrupts = interrupts
        self._selector = selectors.DefaultSelector()
        self.workers = ForkedWorkers(server, spec, streams, self._listen)
        self._without_failure: dict[int, failures.End] = {}  # of ranks that ended with status 0
        self._state = State()
        self._verdicts: list[Failure] = []
        """The failures by which observers end the launch: the first one counts."""
        # A socket, since observers call from their own threads, and the main loop waits in
        # `select`.
        self._verdict, self._verdict_in = socket.socketpair()
        """Readable once there is one."""
        self._observers = Observers[Observer](
            "observers",
            Launch(
                private_dir=spec.private_dir,
                world_size=spec.world_size,
                ranks=spec.ranks,
                end=self._end_with,
            ),
        )
        self.failures = ExplainedFailures(self._observers)
        self._lingering = Lingering(self._observers)

    def close(self) -> None:
        self._selector.close()
        self._observers.tell(lambda observer: observer.close())
        self._verdict.close()
        self._verdict_in.close()
        self.workers.close()

    def outcome(self) -> LaunchResult:
        received = self._interrupts.received
        stopped_by = signal.Signals(received[0]) if received else None
        reported, is_saving = self._reported(), self._state.is_saving
        all_messages = self.workers.all_messages.values()
        was_cut_short = self._state.was_cut_short and not all(sent.is_over for sent in all_messages)
        if stopped_by and (not is_saving or len(received) > 1):
            reported = ()  # as requested, unless it was while the run was being saved
        if is_saving and not reported and self.stopped_with is None and not was_cut_short:
            stopped_by = None  # it had finished meanwhile
        return LaunchResult(
            failures=reported,
            stopped_by=stopped_by,
            stopped_with=None if reported else self.stopped_with,
            is_unsaved=not reported and any(sent.is_unsaved for sent in all_messages),
            was_cut_short=is_saving and was_cut_short,
            joined=self._observers.ask(lambda observer: observer.joined()) if reported or stopped_by else None,
            spec=self._spec,
        )

    def run(self) -> None:
        self._selector.register(self._server, selectors.EVENT_READ, self._on_server)
        self._selector.register(self._interrupts, selectors.EVENT_READ, self._on_interrupt)
        self._selector.register(self._verdict, selectors.EVENT_READ, self._on_verdict)
        self.workers.start_some()
        while self.workers.ranks:
            next_s = self._next_s()
            ready = self._selector.select(None if next_s == math.inf else max(0.0, next_s - time.monotonic()))
            # Signals last: their handling depends on what the workers have sent.
            for key, _ in sorted(ready, key=lambda entry: entry[0].fileobj is self._interrupts):
                key.data()
            self._on_time(time.monotonic())

    def _listen(self, rank: int, receiver: Receiver) -> None:
        self._selector.register(receiver, selectors.EVENT_READ, functools.partial(self._on_message, rank, receiver))

    def _reported(self) -> tuple[Failure, ...]:
        """The failures, the cause first."""
        ends = {rank: sent.end for rank, sent in self.workers.all_messages.items() if sent.end is not None}
        return self.failures.in_order(ends, self._without_failure, self._spec.nproc)

    def _next_s(self) -> float:
        """When to act next if no message arrives, in the time of ``time.monotonic``."""
        if self._state.was_cut_short:
            return self._state.until
        return min(self._state.until, self._lingering.next_look)

    def _on_time(self, now: float) -> None:
        if now >= self._state.until:
            self._on(Event.TIMED_OUT)
        if self._state.was_cut_short:
            return
        if now >= self._lingering.next_look:
            self._lingering.look(now)

    def _on_message(self, rank: int, receiver: Receiver) -> None:
        """A worker has sent a message, or closed its end."""
        before = receiver.messages
        if not receiver.read():
            self._selector.unregister(receiver)
        sent = receiver.messages
        if rank not in self.workers.ranks:
            return
        if before.pid is None and sent.pid is not None:
            # Forked after the others were killed or asked to end: its process id was not known
            # then.
            if self._state.stage is Stage.KILLED:
                kill_worker(sent.pid)
            elif self._state.stage is Stage.ENDING:
                self._interrupt(rank, sent.pid)
            self.workers.start_some()
        if sent.is_over and not before.is_over:
            self._lingering.begin(rank, time.monotonic())
            if self._state.stage is Stage.SAVING and all(
                self.workers.messages_of(rank).is_over for rank in self.workers.ranks
            ):
                self._on(Event.SAVED)  # all are only ending, which they may do for so long
        if before.failure is None and sent.failure is not None:  # its exit handlers may take long
            self._note_failure(rank, 1)

    def _on_server(self) -> None:
        was_ready = self._server.is_ready
        try:
            message = self._server.receive()
        except LaunchError:
            if self._interrupts.received and not was_ready:
                # The server got the signal, too, before it began to ignore signals.
                raise _StoppedEarlyError from None
            raise
        if (ended := self.workers.ended(message)) is not None:
            self._on_end(*ended)
            self.workers.start_some()

    def _on_end(self, rank: int, status: int) -> None:
        sent = self.workers.messages_of(rank)
        self._lingering.end(rank)
        self._observers.tell(lambda observer: observer.ended(rank, status))
        was_killed = self._state.stage is Stage.KILLED and status == -signal.SIGKILL
        if sent.stopped_with is not None and (status == sent.stopped_with or was_killed):
            # It ended as it was asked to. Now all workers end, whatever they are doing.
            self.stopped_with = sent.stopped_with
            self._on(Event.SAVED)
        elif status != 0 or sent.failure is not None:
            self._note_failure(rank, status)
        else:
            self._without_failure[rank] = failures.unforeseen_end()

    def _note_failure(self, rank: int, status: int) -> None:
        if rank in self.failures.by_rank:
            # Known since it was reported. What its observers said of it then is not asked again: by
            # now the others are ending, too. And a verdict is not replaced by what follows from it.
            return
        sent, is_ending = self.workers.messages_of(rank), self._state.was_cut_short
        failure = sent.failure
        if failure is None and is_ending and status in (-signal.SIGINT, -signal.SIGKILL, 128 + signal.SIGINT, 1):
            # It ended by the launcher's own signal, as a program, a shell, or a Python that was
            # interrupted at its exit reports that.
            return
        if failure is not None and failure.kind == "KeyboardInterrupt" and (is_ending or self._is_interrupted):
            # The rank was not yet, or no longer, in a loop that is saved, and so are all ranks.
            self._on(Event.ASKED_TO_END)
            return
        if failure is None:
            failure = failures.from_status(rank, status, self._spec.private_dir, end=sent.end)
        self.failures.add(failure, was_reported=sent.failure is not None)
        self._on(Event.ECHOED if self.failures.are_consequences else Event.FAILED)

    def _end_with(self, failure: Failure) -> None:
        """Called by observers, from any thread."""
        self._verdicts.append(failure)
        with contextlib.suppress(OSError):  # the launch is over
            self._verdict_in.send(b"!")

    def _on_verdict(self) -> None:
        self._selector.unregister(self._verdict)
        if not self.failures.by_rank and not self._state.was_cut_short:
            failure = self._verdicts[0]
            self.failures.by_rank[failure.rank] = failure
            self._on(Event.FAILED)

    def _on_interrupt(self) -> None:
        self._interrupts.clear()
        if not self._server.is_ready:
            raise _StoppedEarlyError
        if len(self._interrupts.received) > 1:
            self._on(Event.ASKED_AGAIN)
        elif self._state.was_cut_short:
            return
        elif self._saves_itself():
            self._on(Event.ASKED_TO_SAVE)
        else:
            self._on(Event.ASKED_TO_END)

    @property
    def _is_interrupted(self) -> bool:
        return self._interrupts.received[:1] == [signal.SIGINT]

    def _saves_itself(self) -> bool:
        """Whether all workers save the run when they are sent the received signal."""
        number = self._interrupts.received[0]
        return (
            self._interrupts.may_save
            and self.workers.are_all_forked
            and all(
                # The kernel is asked, too: the script may have removed the handler that its rank
                # has reported.
                number in self.workers.messages_of(rank).watches and catches(pid, number)
                for rank, pid in self.workers.pids.items()
            )
        )

    def _on(self, event: Event) -> None:
        """Enters the next stage, and carries out the action."""
        save_s = max(SAVING_GRACE_S, self._spec.config.timeout_s)
        self._state, action = transition(
            self._state, event, time.monotonic(), end_s=self._grace_s(), save_s=save_s, saved_s=SAVING_GRACE_S
        )
        if action is Action.SAVE:
            saving = [rank for rank in self.workers.ranks if not self.workers.messages_of(rank).is_over]
            self.workers.send(self._interrupts.received[0], saving)
            if not saving:
                self._on(Event.SAVED)
        elif action is Action.END:
            self._end()
        elif action is Action.KILL:
            self.workers.kill()
        elif action is Action.GIVE_UP:
            raise LaunchError(
                f"processes {sorted(self.workers.pids.values())} were killed but do not exit: the kernel "
                "waits in a file system or driver that does not answer"
            )

    def _end(self) -> None:
        """Asks all workers that have not failed to end."""
        ending.mark(self._spec.private_dir, is_stopped=bool(self._interrupts.received))
        self.workers.start_no_more()
        for rank, pid in self.workers.pids.items():
            self._interrupt(rank, pid)

    def _grace_s(self) -> float:
        """Seconds that workers get to end when asked to."""
        working = {rank: pid for rank, pid in self.workers.pids.items() if not self.workers.messages_of(rank).is_over}
        if any(self._stop_signal(rank, pid) != signal.SIGINT for rank, pid in working.items()):
            return SAVING_GRACE_S
        reported = self._reported()
        restart_follows = reported and not self._interrupts.received and restarts.follows(self._spec, reported[0])
        return RESTART_GRACE_S if restart_follows else GRACE_S

    def _stop_signal(self, rank: int, pid: int) -> int:
        """The signal that asks a worker to end: SIGINT, on which ``finally`` blocks run; or the
        launcher's own, if the script handles it. (Not if its handler is lockstep's: by now the run
        cannot save itself any more.)"""
        asked = self._interrupts.received[:1]
        is_handled = bool(asked) and asked[0] not in self.workers.messages_of(rank).watches and catches(pid, asked[0])
        return asked[0] if is_handled else signal.SIGINT

    def _interrupt(self, rank: int, pid: int) -> None:
        # A rank that has failed is ending, and its exit handlers should not be interrupted. (One
        # that an observer's verdict names has not failed.)
        if self.workers.messages_of(rank).failure is None:
            self.workers.send(self._stop_signal(rank, pid), [rank])


class _StoppedEarlyError(Exception):
    """Stopped before any worker existed."""
