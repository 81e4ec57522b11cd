"""Stops a run on request: preemption by SIGTERM or SIGUSR1 (which Slurm's ``--signal=USR1@120``
sends before the time limit), and Ctrl-C.

A training run does not exit immediately. It finishes a step on which its ranks agree, saves a
checkpoint, and exits with ``REQUEUE_STATUS``, or ``INTERRUPTED_STATUS`` after Ctrl-C. The same
command resumes it. A second signal exits immediately::

    signal --> StopWatch       records it in one process (this module)
                  |
               the ranks agree on a step       (_state/checkpoint/schedule.py)
                  |
               save, then raise Stopped        (_state/recovery/saving.py)
                  |
               the launcher, which forwards the signal, waits for this (_launch/supervise.py)

Why the ranks must agree: each rank receives the signal at another point of its loop, or not at all.
If one rank stopped at a step by itself, the others would wait for it in their next exchange."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from lockstep._base.escape_control import escape_control

REQUEUE_STATUS = 75
"""The exit status of a run that was preempted and saved, and should be started again. It is
EX_TEMPFAIL of ``sysexits.h`` ("try again later"), which Python, shells and lockstep do not use
otherwise (1, 2, 128 + a signal).

Job schedulers can act on it: Slurm (``RequeueExit=75`` in slurm.conf), LSF (``bsub -Q 75``),
HTCondor (``checkpoint_exit_code = 75``), systemd (``RestartForceExitStatus=75``), or a shell:
``until lockstep run train.py; do [ $? = 75 ] || break; done``."""

INTERRUPTED_STATUS = 128 + signal.SIGINT
"""The exit status of a run that was saved after Ctrl-C. Nothing restarts it automatically."""

UNSAVED_STATUS = 74
"""The exit status of a run that was asked to stop and whose checkpoint could not be written
(EX_IOERR). It resumes from the previous checkpoint."""

UNSAVED_END_STATUS = 73
"""The exit status of a run that finished, but whose last checkpoint or best weights could not be
written (EX_CANTCREAT of ``sysexits.h``). The same command resumes it from the previous checkpoint.
"""

AUDIT_STATUS = 76
"""The exit status of a run in which an audit found a wrong result (EX_PROTOCOL of ``sysexits.h``).
Nothing was saved after it, and nothing restarts it automatically."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""The signals on which a run saves a checkpoint and exits. (SIGINT too, but only while steps would
be lost.)"""

SAME_S = 2.0
"""Seconds within which further signals count as the first one: Slurm may send it to every process
of a job, launchers forward it, and some clusters send both kinds. Only a later signal is a second
one."""

_LAST = -1000
"""The priority of an exit handler that multiprocessing calls after all others."""

_SAME_PRESS_S = 0.1
"""The equivalent of ``SAME_S`` for Ctrl-C, which a user may press twice in a second. (``timeout -s
INT`` sends it twice in a row.)"""


def is_same(number: int, after_s: float) -> bool:
    """Returns whether a signal counts as the same request as another one that came so many seconds
    before."""
    return after_s <= (SAME_S if number in SIGNALS else _SAME_PRESS_S)


def catches(pid: int, number: int) -> bool:
    """Returns whether a process has a handler for a signal, installed from any language."""
    with contextlib.suppress(OSError, ValueError):  # it has ended
        # Read by hand, because psutil does not report signal masks.
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            name, _, bits = line.partition(":")
            if name == "SigCgt":
                # Bit 0 is of signal 1.
                return bool(int(bits, 16) >> (number - 1) & 1)
    return False


def is_left_alone(number: int) -> bool:
    """Whether a signal has its default action in this process: it is neither handled nor
    ignored."""
    # Python's own record does not include ``faulthandler.register(SIGUSR1)``.
    return signal.getsignal(number) is signal.SIG_DFL and not catches(os.getpid(), number)


class Stopped(SystemExit):
    """Raised on every rank between two steps when the run was asked to stop, after the run was
    saved (or could not be saved).

    Like for any SystemExit, ``finally`` blocks run."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        """The exit status: ``REQUEUE_STATUS``, ``INTERRUPTED_STATUS`` or ``UNSAVED_STATUS``."""


class Interrupted(Stopped, KeyboardInterrupt):
    """A ``Stopped`` after Ctrl-C: a script that handles KeyboardInterrupt handles it, once the run
    is saved. (Uncaught, a KeyboardInterrupt prints a traceback, and a SystemExit does not.)"""


class Ended(SystemExit):
    """Raised by an instrument, on every rank after the same step, when it has observed everything
    it needs: the script exits with status 0, and its run is not changed further."""

    def __init__(self) -> None:
        super().__init__(0)


class AuditFailed(SystemExit):
    """Raised on every rank in a step in which an audit found a wrong result, after that was
    reported."""

    def __init__(self, headline: str) -> None:
        super().__init__(AUDIT_STATUS)
        self.headline = headline
        """A short summary of the result."""


def ignore_interrupts() -> None:
    """Ignores SIGINT from now on: every rank is about to exit, and a launcher interrupts the others
    as soon as the first one has exited."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Launcher(Protocol):
    """The messages between a process that ``lockstep run`` has started and its launcher."""

    def watches(self, numbers: Sequence[int]) -> None:
        """Reports that this process handles these signals itself from now on, by saving its run."""

    def is_ending(self) -> bool:
        """Returns whether the launch is being stopped: then SIGINT asks this process to exit
        immediately."""

    def stuck(self, report: str, how: str, status: int) -> bool:
        """Reports that this process exits, with this status, because its step cannot be finished.
        Returns whether the launcher prints the report."""

    def unsaved(self) -> bool:
        """Reports that the end of this process's run could not be saved. Returns whether the
        launcher prints that, and exits with ``UNSAVED_END_STATUS``."""


class StopWatch:
    """A record of whether this process was asked to stop, from ``begin`` to ``end``.

    It works only in the main thread, where Python handles signals, and only for signals with their
    default action: signals that the script handles or ignores are not watched. Forked processes do
    not inherit the handlers.

    Args:
        speaks: whether to report a signal on standard error immediately. (One of several ranks
            does.)
    """

    def __init__(self, *, speaks: bool) -> None:
        self.received: signal.Signals | None = None
        """The first signal received."""
        self._speaks = speaks
        self._defaults: dict[int, Any] = {}
        """The previous handlers of the watched signals."""
        self._came_at = 0.0
        self._exit_status: int | None = None
        self._early = _EarlySignals()

    def begin(self) -> None:
        """Watch SIGTERM and SIGUSR1. May be called again."""
        if threading.current_thread() is threading.main_thread():
            self._early.begin()
            self._watch([number for number in SIGNALS if is_left_alone(number)])

    def begin_interrupts(self) -> None:
        """Watches SIGINT too: from now on Ctrl-C would lose steps. May be called again, and outside
        the main thread.

        In a notebook or an interactive session Python handles Ctrl-C, and a handler of the script
        takes precedence."""
        if (
            self._defaults
            and signal.SIGINT not in self._defaults
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
            and not hasattr(sys, "ps1")
        ):
            self._early.forget()  # Python has handled earlier signals
            self._watch([signal.SIGINT])

    def end_interrupts(self) -> None:
        """Returns Ctrl-C to Python, after the training loop was finished and saved."""
        if signal.SIGINT in self._defaults and self.received is None:
            self._restore(signal.SIGINT)
            self._tell()

    def _watch(self, numbers: Sequence[signal.Signals]) -> None:
        global _active
        for number in numbers:
            self._defaults[number] = signal.getsignal(number)
            signal.signal(number, self._note)
        if numbers:
            _active = self
            self._tell()

    def _tell(self) -> None:
        if _launcher is not None:
            _launcher.watches([int(number) for number in self._defaults])

    def _restore(self, number: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        default = self._defaults.pop(number)
        # Otherwise the script has installed another handler meanwhile.
        if signal.getsignal(number) == self._note:
            # Ignored while exiting: Python removes its handlers before the process has exited, and
            # a signal in between would change the exit status.
            signal.signal(number, default if self._exit_status is None else signal.SIG_IGN)

    def exit_with(self, status: int) -> None:
        """Sets the exit status once all ranks have saved. A second signal still exits immediately,
        but with this status: when the first rank has exited, launchers may signal the others
        (``srun --kill-on-bad-exit`` does)."""
        self._exit_status = status

    def end(self) -> None:
        """Removes the handlers. A process that is stopping as requested ignores the signals from
        now on. May be called again."""
        global _active
        if _active is self:
            _active = None
        for number in list(self._defaults):
            self._restore(number)
        self._early.end()

    def say(self, number: signal.Signals, rank: int = 0) -> None:
        """Prints once that a rank received a signal, and what happens next, if this rank
        ``speaks``."""
        if not self._speaks:
            return
        self._speaks = False
        receiver = f" by rank {rank}" if rank else ""
        if number is signal.SIGINT:
            say(
                f"Ctrl-C received{receiver}: saving a checkpoint after this step, then exiting. Press Ctrl-C again to exit "
                "immediately."
            )
        else:
            say(
                f"{number.name} received{receiver}: saving a checkpoint after this step, then exiting with status "
                f"{REQUEUE_STATUS} (repeat the command to resume). A second signal exits immediately."
            )

    def asked(self) -> signal.Signals | None:
        """Returns the signal on which this process should stop, even while its main thread is in C
        code and cannot handle it. May be called from any thread."""
        return self.received or next((signal.Signals(each) for each in self._early.came() if each in self._defaults), None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and _launcher is not None and _launcher.is_ending():
            # Without this, the loader would wait 5 s for each worker that does not respond.
            _kill_children()
            signal.default_int_handler(number, frame)
        if self.received is None:
            self.received, self._came_at = signal.Signals(number), now
            self.say(self.received)
        elif not is_same(number, now - self._came_at):
            if self._exit_status is not None:
                exit_now(self._exit_status)
            if number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)
                signal.default_int_handler(number, frame)
            _end_at_once(number)


class _EarlySignals:
    """The signals of this process, known as soon as they arrive.

    Python calls a handler only between two instructions of the main thread, which may wait for
    other ranks in C code. ``signal.set_wakeup_fd`` makes the C-level handler write the number to a
    pipe, which any thread can read."""

    def __init__(self) -> None:
        self._read_fd = self._write_fd = -1
        self._came: list[int] = []

    def begin(self) -> None:
        """May be called again. Does nothing if the script uses Python's only wakeup descriptor
        itself."""
        if self._read_fd >= 0:
            return
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        others = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
            self._close()

    def came(self) -> list[int]:
        """Returns the numbers of the signals, in order."""
        if self._read_fd >= 0:
            # The pipe is empty, or the script has closed the descriptor.
            with contextlib.suppress(OSError):
                self._came += os.read(self._read_fd, 4096)
        return self._came

    def forget(self) -> None:
        """Forgets the signals received so far."""
        self.came().clear()

    def end(self) -> None:
        """Restores the wakeup descriptor. May be called again. The pipe stays open: a script may
        have closed its descriptors, whose numbers may now belong to other files."""
        if self._read_fd >= 0 and threading.current_thread() is threading.main_thread():
            ours = signal.set_wakeup_fd(-1)
            if ours not in (-1, self._write_fd):
                signal.set_wakeup_fd(ours)

    def _close(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)
        self._read_fd = self._write_fd = -1


_shows_bar = False


def note_bar(*, is_shown: bool) -> None:
    """Notes whether this process shows a progress bar, which does not end its line and is redrawn
    repeatedly."""
    global _shows_bar
    _shows_bar = is_shown


def say(words: str) -> None:
    """Writes a line to standard error, bypassing Python's streams, which may be in use when a
    signal arrives. On a terminal it replaces a progress bar and the ``^C`` after it; the bar is
    redrawn below."""
    with contextlib.suppress(OSError):
        erase = "\r\x1b[2K" if _shows_bar and os.isatty(2) else ""
        os.write(2, f"{erase}lockstep: {escape_control(words, has_lines=True)}\n".encode())


def _kill_children() -> None:
    if threading.current_thread() is threading.main_thread():
        # PyTorch's handler would raise an error here for each worker that is killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        if child.daemon:  # loader workers, which would notice only after seconds
            child.kill()


def exit_now(status: int) -> NoReturn:
    """Exits without exit handlers. In one of them multiprocessing stops loader workers, so they are
    stopped here."""
    _kill_children()
    os._exit(status)


def _end_at_once(number: int) -> None:
    """Exits as if the signal were not handled."""
    _kill_children()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def end_stuck(report: str, how: str, status: int, *, speaks: bool) -> None:
    """Exits this process, whose step cannot be finished, from another thread than the main one,
    which waits in C code.

    Args:
        report: which ranks wait for which others.
        how: why the run is stopped, and what was saved.
        status: the exit status.
        speaks: whether this process prints the report, if there is no launcher.
    """
    tell_stuck(report, how, status, speaks=speaks)
    exit_now(status)  # sys.exit would end this thread alone


def tell_stuck(report: str, how: str, status: int, *, speaks: bool) -> None:
    """Reports why this process, which is about to exit, cannot continue. Its arguments are
    explained at ``end_stuck``."""
    if (_launcher is None or not _launcher.stuck(report, how, status)) and speaks:
        say(f"error: {report}\n\n{how}")


def end_unsaved(words: str) -> None:
    """Makes this process exit with ``UNSAVED_END_STATUS`` when its script, which has trained to the
    end, has finished.

    Args:
        words: printed last, unless the launcher prints it; empty: another rank does.
    """
    global _last_words
    if _launcher is None or not _launcher.unsaved():
        # Imported here: importing it registers an exit handler, which must be registered in the
        # worker and not in the fork server.
        from multiprocessing.util import Finalize

        _last_words = words
        # At the end of multiprocessing's exit handler. PyTorch imports multiprocessing before the
        # script registers handlers, and exit handlers run in reverse order of registration, so this
        # runs after all handlers of the script.
        Finalize(None, _leave_unsaved, exitpriority=_LAST)


def _leave_unsaved() -> None:
    """An exit handler. Python cannot set the exit status there except by exiting immediately."""
    # A script that fails keeps its exit status.
    if _last_words is None or getattr(sys, "last_value", None) is not None:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if _last_words:
        say(_last_words)
    os._exit(UNSAVED_END_STATUS)


_last_words: str | None = None
_active: StopWatch | None = None
_launcher: Launcher | None = None


def under(launcher: Launcher) -> None:
    """Notes that this process was started by a launcher of lockstep."""
    global _launcher
    _launcher = launcher


def is_launched() -> bool:
    """Returns whether this process was started by a launcher of lockstep."""
    return _launcher is not None


def _in_forked_process() -> None:
    global _launcher, _last_words
    # A fork is no rank: it must not report to the launcher in the rank's name, nor save the run
    # when a signal arrives.
    _launcher = _last_words = None
    if _active is not None:
        _active.end()


os.register_at_fork(after_in_child=_in_forked_process)


def leave_signals_to_parent() -> None:
    """Makes a loader worker ignore signals that ask the run to stop, which may be sent to each
    process of the run.

    A SIGTERM from its parent still stops it, because PyTorch stops unresponsive workers in this
    way. Only a thread that waits for a signal learns its sender, so the signals are blocked here,
    and also in programs started from here."""
    numbers = (signal.SIGINT, *SIGNALS)  # a terminal sends Ctrl-C to all of its processes
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    # With a fork server, the process that asked for this worker stops it, and not the one that has
    # forked it.
    started_by = multiprocessing.parent_process()
    parent = os.getppid() if started_by is None else started_by.pid

    def wait() -> None:
        while signal.sigwaitinfo(numbers).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, name="lockstep-signals", daemon=True).start()
