"""Start the workers of one launch, watch them, and end all of them together."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from lockstep import stopping
from lockstep.errors import LaunchError
from lockstep.launch import failures, restarts
from lockstep.launch.failures import Failure
from lockstep.launch.output import Streams
from lockstep.launch.processes import kill_worker, sweep
from lockstep.launch.server import ForkServer
from lockstep.launch.signals import Interrupts
from lockstep.launch.spec import LaunchSpec
from lockstep.launch.standstill import Standstill
from lockstep.stopping import catches

GRACE_S = 3.0
"""How long workers may take to end by themselves once one of them has failed, or Ctrl-C was pressed."""
SAVING_GRACE_S = 30.0
"""The same where a worker handles the signal that the launcher was stopped by: it may have a state to save.

Runs that ``lockstep.join`` has made get as long as ``--timeout`` if that is more: their step is ended first, an evaluation too,
and within that time a rank that waits for others in vain ends with an error anyway. (It is the last resort: whoever has sent
the signal has a limit of his own. Slurm kills KillWait, 30 s, after SIGTERM at a time limit; preempted jobs have GraceTime;
``--signal=USR1@120`` leaves 120 s.)
"""
RESTART_GRACE_S = 0.3
"""The same where all are started again: there is work to go on with."""
WARM_AFTER_S = 5.0
"""How long after a start the server readies itself for a restart. (Its first workers need the processor themselves.)"""
_MAX_ASKED = 4
"""Workers that were asked for and are not yet forked, at most."""
_ECHO_S = 0.5
_KILL_S = 5.0
"""How long a killed worker may take to go; the kernel can hold one back for good, we do not wait for good."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a launch ended."""

    failures: tuple[Failure, ...]
    """The cause first; empty if all went well, or somebody stopped it."""
    stopped_by: signal.Signals | None
    """The signal that the launcher was stopped by; None: none, or the run came to its end all the same."""
    stopped_with: int | None = None
    """The status with which the run itself has ended when it was asked to stop: see ``lockstep.stopping``."""
    was_cut_short: bool = False
    """Whether a run that was to save itself was not waited for: after a second signal, or for too long."""
    spec: LaunchSpec
    """What was run: of several starts, the last."""


def supervise(server: ForkServer, spec: LaunchSpec, streams: Streams, interrupts: Interrupts) -> Outcome:
    """Run all workers of ``spec`` to their end, whatever that is. Afterwards none of their processes exist.

    But for those that the script left on purpose, where all went well: see ``sweep``.

    Raises:
        LaunchError: they could not be forked, or the server died.
    """
    watch = _Watch(server, spec, streams, interrupts)
    went_well = False
    try:
        with contextlib.closing(watch):
            watch.run()
        went_well = not (watch.failures or interrupts.received or watch.stopped_with)
    except _StoppedEarlyError:
        server.close()
    except BaseException:
        watch.sessions |= server.close()  # with it goes every worker, also those that we have not heard of yet
        raise
    finally:
        sweep(watch.sessions, spec.private_dir, went_well=went_well)
    stopped_by = signal.Signals(interrupts.received[0]) if interrupts.received else None
    found = watch.found()
    if stopped_by and (not watch.is_saving or len(interrupts.received) > 1):
        found = ()  # that is what somebody has asked for; not so what fails while the run is to be saved
    if watch.is_saving and not found and watch.stopped_with is None and not watch.was_cut_short:
        stopped_by = None  # it had come to its end meanwhile
    return Outcome(
        failures=found,
        stopped_by=stopped_by,
        stopped_with=None if found else watch.stopped_with,
        was_cut_short=watch.is_saving and watch.was_cut_short,
        spec=spec,
    )


class _Watch:
    """The state of one launch while it runs."""

    def __init__(self, server: ForkServer, spec: LaunchSpec, streams: Streams, interrupts: Interrupts) -> None:
        self.failures: dict[int, Failure] = {}
        self.sessions: set[int] = set()
        self._server = server
        self._spec = spec
        self._streams = streams
        self._interrupts = interrupts
        self._spec_path = spec.save()
        self._to_start = list(spec.ranks)
        self._ranks: dict[int, int] = {}  # by key: those that were asked for and have not ended
        self._pids: dict[int, int] = {}  # by rank: the same, as far as they are forked
        self._without_failure: dict[int, float] = {}  # by rank: when those ended that did with status 0
        self._deadline: float | None = None  # set once the launch is being ended; then when to kill
        self._echo_until: float | None = None  # set once ranks fail because another did, which has not said so yet
        self._killed = False
        self.is_saving = False
        """Whether the workers end by themselves, once they have saved the run."""
        self.stopped_with: int | None = None
        """See Outcome."""
        self._save_until = math.inf
        self._timeout_s = spec.config.timeout_s
        self._standstill = Standstill(spec.nproc, self._timeout_s)
        self._warm_at: float | None = time.monotonic() + WARM_AFTER_S if spec.restart < spec.max_restarts else None
        self._nudge_r, self._nudge_w = os.pipe()
        os.set_blocking(self._nudge_r, False)

    def close(self) -> None:
        os.close(self._nudge_r)
        os.close(self._nudge_w)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for source in (self._server, self._interrupts, self._nudge_r):
                selector.register(source, selectors.EVENT_READ)
            self._start_some()
            while self._ranks:
                next_s = self._next_s()
                timeout = None if next_s == math.inf else max(0.0, next_s - time.monotonic())
                for key, _ in selector.select(timeout):
                    if key.fileobj is self._server:
                        self._on_message(self._receive())
                    elif key.fileobj is self._interrupts:
                        self._on_interrupt()
                    else:
                        self._on_nudge()
                self._on_time(time.monotonic())

    def _receive(self) -> dict[str, Any]:
        was_ready = self._server.is_ready
        try:
            return self._server.receive()
        except LaunchError as error:
            if self._interrupts.received and not was_ready:
                raise _StoppedEarlyError from None  # the signal came to the server too, before it could leave it to us
            raise LaunchError("\n\n".join([str(error), *self._last_words()])) from None

    def _last_words(self) -> list[str]:
        """What workers have left in writing, now that none of them is left."""
        ranks, private_dir = self._spec.ranks, self._spec.private_dir
        ended = [f"  rank {rank}: {how}" for rank, (_, how) in failures.marked_ends(private_dir, ranks).items()]
        written = {rank: found for rank in ranks if (found := failures.Failure.load(private_dir, rank)) is not None}
        self.failures = written | self.failures
        return [
            *(["\n".join(["ended before it:", *ended])] if ended else []),
            *([failures.report(self.found(), self._spec.world_size)] if self.failures else []),
        ]

    def found(self) -> tuple[Failure, ...]:
        """The failures, the cause first."""
        found = failures.in_order(list(self.failures.values()))
        early = failures.early_end(found, self._spec.private_dir, self._spec.ranks, self._without_failure)
        return (early, *found) if early is not None else tuple(found)

    @property
    def was_cut_short(self) -> bool:
        """Whether workers were killed, or told to end at once."""
        return self._deadline is not None

    def _next_s(self) -> float:
        """When something is to be done even if nobody says anything."""
        if self._deadline is not None:
            return self._deadline
        times = (self._standstill.next_look, self._echo_until, self._warm_at, self._save_until)
        return min(time_s for time_s in times if time_s is not None)

    def _on_time(self, now: float) -> None:
        if self._deadline is not None:
            if now >= self._deadline:
                self._on_deadline()
            return
        if now >= self._save_until:
            self._kill()
        elif self._echo_until is not None and now >= self._echo_until:
            self._end()
        elif now >= self._standstill.next_look:
            self._look_for_standstill(self._standstill.limit_s)
        if self._warm_at is not None and now >= self._warm_at:
            self._warm_at = None
            self._server.warm()

    def _start_some(self) -> None:
        """Ask for workers, a few at a time: a socket's queue is short, and with both full both sides would wait."""
        while self._to_start and len(self._ranks) - len(self._pids) < _MAX_ASKED:
            rank = self._to_start.pop(0)
            fds = (*self._streams.for_rank(rank), self._nudge_w)
            self._ranks[self._server.start_worker(self._spec_path, rank, fds)] = rank
            if not self._to_start:
                self._streams.handed_over()

    def _on_message(self, message: dict[str, Any]) -> None:
        if "key" not in message or message["key"] not in self._ranks:
            return
        rank = self._ranks[message["key"]]
        if "pid" in message:
            self._pids[rank] = message["pid"]
            self.sessions.add(message["pid"])
            self._start_some()
            if self._killed:
                kill_worker(message["pid"])
            elif self._deadline is not None:
                self._interrupt(rank)
        elif "error" in message:
            raise LaunchError(f"rank {rank} of {self._spec.world_size} could not be started: {message['error']}")
        else:
            del self._ranks[message["key"]]
            self._pids.pop(rank, None)
            stopped_with = failures.stopped_with(self._spec.private_dir, rank)
            if stopped_with is not None and message["status"] == stopped_with:
                self._note_stopped(stopped_with)
            elif message["status"] != 0:
                self._note_failure(rank, message["status"])
            else:
                self._without_failure[rank] = time.time()

    def _note_stopped(self, status: int) -> None:
        """A worker has ended because the run was asked to stop. All of them end now, and whatever they have still to do."""
        self.is_saving, self.stopped_with = True, status
        self._save_until = min(self._save_until, time.monotonic() + SAVING_GRACE_S)

    def _note_failure(self, rank: int, status: int) -> None:
        ending = self._deadline is not None
        failure = failures.Failure.load(self._spec.private_dir, rank)
        if failure is None and ending and status in (-signal.SIGINT, -signal.SIGKILL, 128 + signal.SIGINT):
            return  # our own doing (as a program tells of it, or a shell for it)
        if failure is not None and ending and failure.kind == "KeyboardInterrupt":
            return  # the same
        self.failures[rank] = failure or failures.from_status(rank, status, self._spec.private_dir)
        if all(known.is_consequence for known in self.failures.values()):
            # Only an echo: the rank that failed first is about to say why, and must not be interrupted in that. Or one is
            # stopped, and the script lets the others wait for less long than the launcher knows of.
            self._echo_until = self._echo_until or time.monotonic() + _ECHO_S
            self._look_for_standstill(0.0)
        else:
            self._end()

    def _look_for_standstill(self, least_s: float) -> None:
        for rank, stopped_s in self._standstill.look(self._pids).items():
            if stopped_s >= least_s and rank not in self.failures and self._deadline is None:
                self.failures[rank] = failures.from_standstill(rank, self._pids[rank], stopped_s)
                kill_worker(self._pids[rank])
                self._end()

    def _on_nudge(self) -> None:
        """A worker has failed, and may take its time over its exit handlers."""
        for line in os.read(self._nudge_r, 65536).split():
            self._note_failure(int(line), 1)

    def _on_interrupt(self) -> None:
        self._interrupts.clear()
        if not self._server.is_ready:
            raise _StoppedEarlyError
        if len(self._interrupts.received) > 1:
            self._kill()
        elif self._deadline is None and self._saves_itself():
            self._save()
            return
        elif self._deadline is None and self._hand_on():
            return
        self._end()

    def _saves_itself(self) -> bool:
        """Whether all workers save the run when they are sent the signal that has come."""
        number = self._interrupts.received[0]
        return (
            number in stopping.SIGNALS
            and len(self._pids) == len(self._ranks)
            and not self._to_start
            and all(failures.is_watching(self._spec.private_dir, rank) for rank in self._pids)
            and all(catches(pid, number) for pid in self._pids.values())
        )

    def _save(self) -> None:
        self.is_saving = True
        self._save_until = time.monotonic() + max(SAVING_GRACE_S, self._timeout_s)
        self._send(self._interrupts.received[0], self._pids.values())

    def _hand_on(self) -> bool:
        """SIGUSR1 means what scripts make of it: those that handle it get it, and go on. False: it is another, or none does."""
        number = self._interrupts.received[0]
        pids = [pid for pid in self._pids.values() if catches(pid, number)] if number == signal.SIGUSR1 else []
        self._send(number, pids)
        if pids:
            self._interrupts.forget()
        return bool(pids)

    def _send(self, number: int, pids: Collection[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _on_deadline(self) -> None:
        if self._killed:
            raise LaunchError(
                f"processes {sorted(self._pids.values())} do not end, although they were killed: "
                "the kernel holds them (a file system or driver that does not answer)"
            )
        self._kill()

    def _end(self) -> None:
        """Ask all workers that have not failed to end, and give them a while."""
        if self._deadline is not None:
            return
        self._deadline = time.monotonic() + self._grace_s()
        failures.mark_ending(self._spec.private_dir, is_stopped=bool(self._interrupts.received))
        if self._to_start:
            self._to_start.clear()
            self._streams.handed_over()
        for rank in list(self._pids):
            self._interrupt(rank)

    def _grace_s(self) -> float:
        if any(self._stop_signal(pid) != signal.SIGINT for pid in self._pids.values()):
            return SAVING_GRACE_S
        return RESTART_GRACE_S if self._restart_follows() else GRACE_S

    def _stop_signal(self, pid: int) -> int:
        """SIGINT, for then `finally` blocks run; or what we got ourselves, if the script waits for that."""
        asked = self._interrupts.received[:1]
        is_handled = bool(asked) and not self._is_ours(pid) and catches(pid, asked[0])
        return asked[0] if is_handled else signal.SIGINT

    def _is_ours(self, pid: int) -> bool:
        """Whether it handles signals in lockstep's way, which is none for a run that cannot save itself any more."""
        return any(failures.is_watching(self._spec.private_dir, rank) for rank, own in self._pids.items() if own == pid)

    def _restart_follows(self) -> bool:
        found = self.found()
        return bool(found) and not self._interrupts.received and restarts.follows(self._spec, found[0])

    def _interrupt(self, rank: int) -> None:
        if rank in self.failures:
            return  # it is ending, and its exit handlers should run undisturbed
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids[rank], self._stop_signal(self._pids[rank]))

    def _kill(self) -> None:
        self._killed = True
        self._deadline = time.monotonic() + _KILL_S
        for pid in self._pids.values():
            kill_worker(pid)


class _StoppedEarlyError(Exception):
    """Stopped before there was any worker."""
