"""Preemption by SIGTERM, or by SIGUSR1, which Slurm's ``--signal=USR1@120`` sends before the time limit.

A training run does not end at once. It finishes a step on which its ranks agree, saves a checkpoint, and exits with
``REQUEUE_STATUS``; the same command resumes it. A second signal ends it at once. ``StopWatch`` records the signal in a
process, the ranks agree (``checkpoint.pace``), ``recovery.saving`` saves and raises ``Stopped``, and the launcher, which
forwards the signal, waits for that (``launch.supervise``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

REQUEUE_STATUS = 75
"""The exit status of a run that was preempted and saved, and should be started again. It is EX_TEMPFAIL of ``sysexits.h``,
"try again later", and not otherwise used by Python, shells, or lockstep (1, 2, 128 + a signal).

Job schedulers can act on it: Slurm (``RequeueExit=75`` in slurm.conf), LSF (``bsub -Q 75``), HTCondor
(``checkpoint_exit_code = 75``), systemd (``RestartForceExitStatus=75``), or a shell:
``until lockstep run train.py; do [ $? = 75 ] || break; done``.
"""

UNSAVED_STATUS = 74
"""The exit status of a preempted run whose checkpoint could not be written (EX_IOERR): it resumes from the one before."""

AUDIT_STATUS = 76
"""The exit status of a run in which an audit has found a wrong result (EX_PROTOCOL of ``sysexits.h``: a machine gave what is
not possible). Nothing was saved after it, and nothing starts it again."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals on which a run saves a checkpoint and exits."""

SAME_S = 2.0
"""Seconds within which further signals count as the first one: Slurm may send it to every process of a job, launchers
forward it, and some clusters send both kinds. Only a later one is a second signal."""


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, installed from any language."""
    return _is_in_mask(pid, "SigCgt", number)


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    return _is_in_mask(pid, "SigIgn", number)


def _is_in_mask(pid: int, mask: str, number: int) -> bool:
    with contextlib.suppress(OSError, ValueError):  # it has ended
        # By hand, for psutil knows nothing of signal masks.
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            name, _, bits = line.partition(":")
            if name == mask:
                return bool(int(bits, 16) >> (number - 1) & 1)
    return False


def is_left_alone(number: int) -> bool:
    """Whether a signal has its default action in this process: it is neither handled nor ignored."""
    # Python's own record does not include ``faulthandler.register(SIGUSR1)``.
    return signal.getsignal(number) is signal.SIG_DFL and not catches(os.getpid(), number)


class Stopped(SystemExit):
    """Raised on every rank between two steps when the run was asked to stop, after it was saved (or could not be).

    As with any SystemExit, ``finally`` blocks run.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        """``REQUEUE_STATUS`` or ``UNSAVED_STATUS``."""


class AuditFailed(SystemExit):
    """Raised on every rank in a step in which an audit has found a wrong result, after that was said."""

    def __init__(self, headline: str) -> None:
        super().__init__(AUDIT_STATUS)
        self.headline = headline
        """What was found, in a few words."""


def ignore_interrupts() -> None:
    """Ignore SIGINT from now on: every rank is about to exit by itself, and a launcher interrupts the others as soon as the
    first one has."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class StopWatch:
    """Records that this process was asked to stop, from ``begin`` to ``end``.

    Works only in the main thread, where Python handles signals, and only for signals with their default action: those that the
    script handles or ignores are left alone. Forked processes do not inherit the handlers.

    Args:
        speaks: whether to report a signal on standard error at once. (One of several ranks does.)
    """

    def __init__(self, *, speaks: bool) -> None:
        self.received: signal.Signals | None = None
        """The first signal received."""
        self._speaks = speaks
        self._watched: list[signal.Signals] = []
        self._came_at = 0.0
        self._settled: int | None = None

    def begin(self) -> None:
        """Install the handlers. May be called again."""
        global _active
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if is_left_alone(number):
                signal.signal(number, self._note)
                self._watched.append(number)
        if self._watched and _active is not self:
            _active = self
            if _tell is not None:
                _tell()

    def settle(self, status: int) -> None:
        """Set the exit status once all ranks have saved. A second signal still ends the process at once, but with this status:
        when the first rank has ended, launchers may signal the others (``srun --kill-on-bad-exit`` does)."""
        self._settled = status

    def end(self) -> None:
        """Remove the handlers; a process that is stopping as requested ignores the signals from now on. May be called again."""
        global _active
        if _active is self:
            _active = None
        if threading.current_thread() is threading.main_thread():
            for number in self._watched:
                if signal.getsignal(number) == self._note:  # else the script has put another there meanwhile
                    # (Python itself would take its own handlers away before it has ended.)
                    signal.signal(number, signal.SIG_DFL if self._settled is None else signal.SIG_IGN)
        self._watched.clear()

    def say(self, number: signal.Signals, rank: int = 0) -> None:
        """Report that a rank has received a signal and what will happen, once, if this rank ``speaks``."""
        if self._speaks:
            self._speaks = False
            receiver = f" by rank {rank}" if rank else ""
            say(
                f"{number.name} received{receiver}: the run is saved after a step and ends with status {REQUEUE_STATUS} "
                "(start the same command again to resume); a second signal ends it at once."
            )

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._came_at = signal.Signals(number), now
            self.say(self.received)
        elif now - self._came_at > SAME_S:
            if self._settled is not None:
                os._exit(self._settled)
            _end_at_once(number)


def say(words: str) -> None:
    """Write a line to standard error, bypassing Python's streams, which may be in use when a signal arrives."""
    with contextlib.suppress(OSError):
        os.write(2, f"lockstep: {words}\n".encode())


def _end_at_once(number: int) -> None:
    """End this process as if the signal were not handled."""
    for child in multiprocessing.active_children():
        if child.daemon:  # loader workers, which would notice only after seconds
            child.kill()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


_active: StopWatch | None = None
_tell: Callable[[], object] | None = None


def tell_when_watching(tell: Callable[[], object]) -> None:
    """Have ``tell`` called when this process installs the handlers: its launcher then leaves stopping the run to it."""
    global _tell
    _tell = tell


def _in_forked_process() -> None:
    global _tell
    _tell = None
    if _active is not None:
        _active.end()


os.register_at_fork(after_in_child=_in_forked_process)


def leave_signals_to_parent() -> None:
    """Make a loader worker ignore signals that ask the run to stop, which may be sent to each of its processes.

    A SIGTERM from its parent still ends it, as PyTorch ends unresponsive workers. (Only a thread that waits for a signal learns
    its sender, so the signals are blocked, also in programs started from here.)
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    started_by = multiprocessing.parent_process()  # with a fork server, not the process that forked it
    parent = os.getppid() if started_by is None else started_by.pid

    def wait() -> None:
        while signal.sigwaitinfo(SIGNALS).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, name="lockstep-signals", daemon=True).start()
