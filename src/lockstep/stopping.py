"""Being asked to make room: SIGTERM, and SIGUSR1, which Slurm's ``--signal=USR1@120`` sends so many seconds before the end.

A run that trains does not end at once. It ends its step, writes a checkpoint, and leaves with ``REQUEUE_STATUS``: started
again, by whoever started it, it goes on. A second signal ends it at once. The parts of that: ``StopWatch`` notes the signal
in a process, the ranks agree (``checkpoint.pace``), ``recovery.saving`` saves and raises ``Stopped``, and the launcher, which
hands the signal on, waits for that (``launch.supervise``).
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
"""The exit status that means "I am not done, and all is saved: start me again". It is EX_TEMPFAIL of ``sysexits.h``, "try again
later", and no status of Python, of a shell, or of lockstep's own (1, 2, 128 + a signal).

What starts jobs can act upon a status: Slurm (``RequeueExit=75`` in slurm.conf), LSF (``bsub -Q 75``), HTCondor
(``checkpoint_exit_code = 75``), systemd (``RestartForceExitStatus=75``), or a shell:
``until lockstep run train.py; do [ $? = 75 ] || break; done``.
"""

UNSAVED_STATUS = 74
"""The same where the checkpoint could not be written (EX_IOERR): what came after the one before it will be done again."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Those that ask a run to save itself and end."""

SAME_S = 2.0
"""Signals that follow the first one so closely are that one, come by another way: Slurm may send it to every process of a job,
launchers then hand it on, and some clusters send both kinds. Only a later one is the second."""


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal, in whatever language."""
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
    """Whether a signal does in this process what it does by itself: nobody handles it, nor has it ignored."""
    # Python alone would not know of ``faulthandler.register(SIGUSR1)``.
    return signal.getsignal(number) is signal.SIG_DFL and not catches(os.getpid(), number)


class Stopped(SystemExit):
    """The run was asked to stop, has saved itself or could not, and ends: raised on every rank, between two steps.

    As with any SystemExit, ``finally`` blocks run.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        """``REQUEUE_STATUS`` or ``UNSAVED_STATUS``."""


class StopWatch:
    """Notes that this process was asked to stop, from ``begin`` to ``end``.

    Only in the main thread, where alone Python can; and only signals that would do what they do by themselves: one that the
    script handles, or that was to be ignored, is left as it is. Processes that are forked meanwhile do not inherit it.

    Args:
        speaks: whether to say on standard error, at once, that a signal has come. (Of several ranks one does.)
    """

    def __init__(self, *, speaks: bool) -> None:
        self.received: signal.Signals | None = None
        """The first signal."""
        self._speaks = speaks
        self._watched: list[signal.Signals] = []
        self._came_at = 0.0
        self._settled: int | None = None

    def begin(self) -> None:
        """Watch from now on. May be called again."""
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
        """All ranks have done what they were asked to, and this process ends. A second signal still ends it at once, but with
        this status: when the first rank has ended, launchers may send the others one (``srun --kill-on-bad-exit`` does)."""
        self._settled = status

    def end(self) -> None:
        """Watch no more; a process that ends as it was asked to does so in peace from now on. May be called again."""
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
        """Tell the user what will happen, since a rank has got a signal; unless this has been told, or others tell it."""
        if self._speaks:
            self._speaks = False
            whose = f" by rank {rank}" if rank else ""
            say(
                f"{number.name} received{whose}: the run is saved after this step and ends with status {REQUEUE_STATUS} "
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
    """A line on standard error, past Python's own streams: those may just be in use when a signal comes."""
    with contextlib.suppress(OSError):
        os.write(2, f"lockstep: {words}\n".encode())


def _end_at_once(number: int) -> None:
    """As if nobody had handled the signal."""
    for child in multiprocessing.active_children():
        if child.daemon:  # loader workers: they would notice only after seconds
            child.kill()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


_active: StopWatch | None = None
_tell: Callable[[], object] | None = None


def tell_when_watching(tell: Callable[[], object]) -> None:
    """Have ``tell`` called when this process begins to watch: its launcher then leaves the end of the run to it."""
    global _tell
    _tell = tell


def _in_forked_process() -> None:
    global _tell
    _tell = None
    if _active is not None:
        _active.end()


os.register_at_fork(after_in_child=_in_forked_process)


def leave_signals_to_parent() -> None:
    """In a loader worker: what asks the run to stop, and may come to each of its processes, is not for this one.

    Its parent's own SIGTERM still ends it: that is how PyTorch ends a worker that does not answer. (Who has sent a signal is
    told to nobody but a thread that waits for it. The signals are blocked for that, also in programs started from here.)
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    started_by = multiprocessing.parent_process()  # with a fork server not the one that forked it
    parent = os.getppid() if started_by is None else started_by.pid

    def wait() -> None:
        while signal.sigwaitinfo(SIGNALS).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, name="lockstep-signals", daemon=True).start()
