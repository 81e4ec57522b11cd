"""Failures of workers: workers report them (``_launch/messages.py``), and the launcher puts them in
order and shows them to the user."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep._base import exit_status
from lockstep._base.errors import (
    CheckpointError,
    ConfigError,
    LaunchError,
    LockstepError,
    LossError,
    MismatchError,
    ModelError,
    UsageError,
)
from lockstep._base.stopping import AUDIT_STATUS, AuditFailed
from lockstep._base.tracebacks.excerpt import excerpt, first_line, message_of, plain_message, without_noise
from lockstep._base.tracebacks.frames import owner
from lockstep._launch.echoes import handled_before, is_echo, what_followed
from lockstep._world.environment import shows_tracebacks

_LAUNCH_DIR = str(Path(__file__).parent)
_OURS = f"{Path(__file__).parents[1]}/"
_LINE = re.compile(r'^ +File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)
_MODULES = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)

_TIMEOUT = re.compile(r"timed? ?out|ms for (recv|send) operation", re.IGNORECASE)
_CLOSED = re.compile(r"(closed|reset) by peer|broken pipe", re.IGNORECASE)

_RECURRING = (CheckpointError, ConfigError, LossError, UsageError, MismatchError, ModelError, LaunchError)

_SIGNAL_WORDS: dict[int, str] = {
    signal.SIGKILL: "killed by another process or the kernel, for example because memory ran out (see dmesg)",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a bus error, perhaps because /dev/shm is full",
    signal.SIGTERM: "terminated by another process",
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of one worker."""

    rank: int
    host: str = field(default_factory=socket.gethostname)
    time_s: float = field(default_factory=time.time)
    """The time at which the worker exited, or at which that was noticed, in seconds since 1970."""
    kind: str
    """The name of the exception's type, or of the signal; empty: unknown."""
    message: str
    """The message of the exception; empty: unknown."""
    code: str = ""
    """The error's code (``LockstepError.code``); empty: no code."""
    text: str = ""
    """The traceback, by Python or faulthandler."""
    frames: str = ""
    """The part of the traceback that is shown, with the whole message above it; empty: all."""
    explanation: str = ""
    """A plain explanation of an error of PyTorch; empty: none."""
    exit_status: int = 1
    """The exit status of the launcher if this is the first failure."""
    is_consequence: bool = False
    """Whether another rank's failure seems to have caused it."""
    then: str = ""
    """The place where the rank met a consequence while it was handling its own failure, as a
    clause; empty: it did not."""
    would_recur: bool = False
    """Whether the same program would fail in the same way again."""
    ended_early: bool = False
    """Whether the program finished successfully while other ranks still needed it."""
    is_of_all: bool = False
    """Whether all ranks end together, so that the reporting rank need not be the cause. The message
    then names the cause."""
    waited: str = ""
    """An observer's text on who waited for whom when this rank timed out."""
    remark: str = ""
    """An observer's text on the likely cause, a remedy, and what the rank was doing; empty:
    unknown."""

    def summary(self) -> str:
        """Returns the failure in one line."""
        return self._said(first_line(self.message))

    def whole(self) -> str:
        """Returns the message and the user's frames. The message is one line if an explanation or a
        whole traceback follows."""
        said = self._said(self.message.strip()) if self.frames and not self.explanation else self.summary()
        return f"{said}\n{self.frames}" if self.frames else said

    def _said(self, message: str) -> str:
        return (f"{self.kind}: {message}" if self.kind and message else self.kind or message) + self.then

    @property
    def distance(self) -> int:
        """The distance from the cause: 0, 1 or 2.

        0: it may be the cause. 1: a consequence that the rank met while it handled its own failure,
        which is the cause unless another rank has a failure of distance 0. 2: only a consequence.
        """
        return 1 if self.then else 2 * self.is_consequence


@dataclass(frozen=True, kw_only=True)
class End:
    """The successful end of a worker's program."""

    how: str
    time_s: float = field(default_factory=time.time)


def from_exception(rank: int, error: BaseException, explain: Callable[[BaseException], str] = lambda error: "") -> Failure:
    """A failure by an exception. Called in the worker; ``explain`` puts cryptic errors into plain
    words."""
    own = handled_before(error)
    then = f", then it {what_followed(error)}" if own is not None else ""
    first = error if own is None else own
    return Failure(
        rank=rank,
        kind=type(first).__qualname__,
        message=plain_message(first),
        code=first.code if isinstance(first, LockstepError) else "",
        text=traceback_of(error),
        frames="" if shows_tracebacks() else excerpt(first),
        explanation=explain(first),
        is_consequence=is_echo(error),
        then=then,
        would_recur=isinstance(first, _RECURRING),
        exit_status=130 if isinstance(first, KeyboardInterrupt) else 1,
    )


def status_of(code: object) -> int:
    """The exit status of Python after ``sys.exit(code)``, of which the system keeps 8 bits."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return code & 0xFF


def from_exit(rank: int, code: object) -> Failure:
    """A failure by ``sys.exit(code)``. Called in the worker."""
    if isinstance(code, int):
        # The system keeps 8 bits, of which there may be none: still it is a failure.
        message, status = f"the script ended itself with sys.exit({code})", status_of(code) or 1
    else:  # a message, which the interpreter would print
        message, status = message_of(code), 1
    return Failure(
        rank=rank,
        kind="SystemExit",
        message=message,
        text=message if "\n" in message.strip() else "",
        exit_status=status,
    )


def from_audit(rank: int, error: AuditFailed) -> Failure:
    """A failure by an audit, which has printed its verdict already. Called in the worker."""
    return Failure(
        rank=rank,
        kind="wrong result",
        message=error.headline,
        would_recur=True,
        is_of_all=True,
        exit_status=AUDIT_STATUS,
    )


def from_status(rank: int, status: int, private_dir: str, *, end: End | None = None) -> Failure:
    """A failure that the worker has not reported, by its exit status, or minus the signal.

    Args:
        end: of its program, if that ended successfully before.
    """
    text, has_waited = "", end is not None and status == 1
    if has_waited:  # as lockstep's exit handler ends it after a timeout
        kind, message, exit_status = "", "the script finished, but an exit handler failed (see the output above)", 1
    elif status >= 0:
        kind, message, exit_status = "", f"ended with status {status} and without a Python exception", status
    else:
        try:
            kind = signal.Signals(-status).name
        except ValueError:
            kind = f"signal {-status}"
        message = _SIGNAL_WORDS.get(-status, "ended by a signal")
        # As a shell reports it: 128 plus the signal, of which the status is the negative.
        exit_status = 128 - status
        fault = fault_path(private_dir, rank)
        text = _without_ours(fault.read_text(encoding="utf-8", errors="replace")) if fault.exists() else ""
    return Failure(
        rank=rank,
        kind=kind,
        message=message,
        text=text,
        exit_status=exit_status,
        is_consequence=has_waited,
    )


def from_deadlock(rank: int, report: str, how: str, status: int = 1) -> Failure:
    """The end of ranks that wait for each other, and can never continue.

    Args:
        rank: of one that waits.
        report: which ranks wait for which others.
        how: why the run ends, and what was saved.
        status: the exit status of the launcher.
    """
    return Failure(rank=rank, kind="", message=how, is_of_all=True, waited=report, exit_status=status)


def place_of(failure: Failure) -> str:
    """The innermost line of the user's code in its traceback, as ``FILE:LINE in FUNCTION``; empty:
    there is none."""
    places = [f"{file}:{line} in {name}" for file, line, name in _LINE.findall(failure.text) if owner(file) == "user"]
    # A traceback ends with the innermost frame, and faulthandler's begins with it.
    return places[-1 if "most recent call last" in failure.text else 0] if places else ""


def fault_path(private_dir: str, rank: int) -> Path:
    """The file to which the worker's faulthandler writes."""
    return Path(private_dir, f"fault-{rank}.txt")


def end_of(error: SystemExit | None = None) -> End:
    """The successful end of a program, perhaps by ``sys.exit()``. Called in the worker."""
    how = "the script finished"
    if error is not None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != exit_status.__file__]
        where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        how = f"called sys.exit({'' if error.code is None else error.code}){where}"
    return End(how=how)


def unforeseen_end() -> End:
    """The end of a process, with status 0, whose program was not finished."""
    return End(how="exited with status 0 before the script finished (os._exit or os.exec*?)")


def early_end(
    reported: Sequence[Failure], ends: Mapping[int, End], without_failure: Mapping[int, End], num_ranks: int
) -> Failure | None:
    """The rank that exited successfully but too early, if the failures are consequences of that;
    None: they are not.

    Args:
        reported: the failures, in order.
        ends: of the programs that exited successfully, by rank.
        without_failure: the ends of processes with status 0, by rank.
        num_ranks: of this machine.
    """
    if not reported or not all(map(lacked_peers, reported)) or any(failure.then for failure in reported):
        return None
    if len(ends) == num_ranks:  # all programs ended; the failures are of exit handlers
        return None
    # Programs that ended after the first failure are no cause of it. A process without a report of
    # its program's end (os._exit) is, whenever its end was noticed.
    known = {rank: end for rank, end in ends.items() if end.time_s < reported[0].time_s}
    known.update({rank: end for rank, end in without_failure.items() if rank not in ends})
    if not known:
        return None
    rank = min(known, key=lambda rank: known[rank].time_s)
    return Failure(
        rank=rank,
        time_s=known[rank].time_s,
        kind="",
        message=(
            f"{known[rank].how} while other ranks were still waiting for it. All ranks must run the "
            "same number of steps and exit together."
        ),
        ended_early=True,
    )


def lacked_peers(failure: Failure) -> bool:
    """Whether a rank seems to have failed only because others did not take part, or not within the
    timeout."""
    return failure.is_consequence or has_aborted(failure)


def timed_out(failure: Failure) -> bool:
    """Whether a rank has failed because it had waited for too long, and not because others have
    exited."""
    message = failure.message
    return failure.is_consequence and _TIMEOUT.search(message) is not None and _CLOSED.search(message) is None


def has_aborted(failure: Failure) -> bool:
    """Whether a communication library seems to have aborted the process. They do so in their own
    threads, and faulthandler names the current thread only if it is one of Python's. (Another
    thread may crash while it writes that.)"""
    is_abort = failure.kind == "SIGABRT" or (failure.kind == "SIGSEGV" and "Fatal Python error: Aborted" in failure.text)
    return is_abort and "Current thread" not in failure.text


def in_order(failures: Sequence[Failure]) -> list[Failure]:
    """The failures, the cause first: by time, and consequences of others last."""
    return sorted(failures, key=lambda failure: (failure.distance, failure.time_s))


def report(failures: Sequence[Failure], nproc: int, *, attached: int | None = None) -> str:
    """The text for the user: the first failure in full, the others in a line each. They must be in
    order, the cause first."""
    first, *rest = failures
    are_alike = len(failures) == nproc and all(failure.summary() == first.summary() for failure in rest)
    who = f"all {nproc} ranks failed" if rest and are_alike and not first.is_of_all else _who(first, nproc)
    explained = f"Explanation: {first.explanation}" if first.explanation else ""
    parts = [*([first.waited] if first.waited else []), f"{who}: {first.whole()}" if who else first.whole()]
    parts += [text.rstrip() for text in (explained, "" if first.frames else first.text, first.remark) if text]
    if first.kind in ("BdbQuit", "EOFError") and attached != first.rank:
        parts.append(
            "A breakpoint() or input() in a worker has no terminal to read from. `lockstep run "
            f"--attach {first.rank}` connects rank {first.rank} to this one."
        )
    rest = [] if are_alike else [failure for failure in rest if not (first.is_of_all and failure.is_of_all)]
    if rest:
        said = [(failure, failure.summary()) for failure in rest]
        lines = [
            f"  rank {failure.rank} on {failure.host}: {'the same error' if text == first.summary() else text}"
            f"{_where(failure) if first.ended_early else ''}"
            for failure, text in said
        ]
        parts.append("\n".join(["failed after it:", *lines]))
    return "\n\n".join(parts)


def _where(failure: Failure) -> str:
    """Where a rank still needed one that had exited, as a clause."""
    return f" (at {place})" if (place := place_of(failure)) else ""


def headline(first: Failure, nproc: int) -> str:
    """One line: which rank failed first, and how; or what ended all ranks."""
    who = _who(first, nproc)
    return f"{who}: {first.summary()}" if who else first.summary()


def _who(first: Failure, nproc: int) -> str:
    """Which rank failed first; empty: all ended together."""
    how = "ended first" if first.ended_early else "failed"
    return "" if first.is_of_all else f"rank {first.rank} of {nproc} on {first.host} {how}"


def logs(failures: Sequence[Failure]) -> Mapping[int, str]:
    """The text for each failed rank's log."""
    texts = {}
    for failure in failures:
        explained = f"\n\nExplanation: {failure.explanation}" if failure.explanation else ""
        texts[failure.rank] = f"{failure.text.rstrip() or failure.summary()}{explained}\n"
    return texts


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception, from the script's first line on, without the additions of
    libraries."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return without_noise("".join(traceback.format_exception(type(error), error, trace)))


def _without_ours(fault: str) -> str:
    """A report of faulthandler, without the threads that lockstep's observers have started, the
    frames that started the script, and its list of extension modules: dozens of names, whatever has
    crashed."""
    threads = [thread for thread in _MODULES.sub("", fault).split("\n\n") if not _started_by_us(thread)]
    return "\n\n".join(
        "\n".join(line for line in thread.split("\n") if not ((at := _LINE.match(line)) and _is_ours(at[1])))
        for thread in threads
    )


def _started_by_us(thread: str) -> bool:
    """Whether the outermost frame is lockstep's. The main thread's is Python's, in which the fork
    server runs."""
    frames = _LINE.findall(thread)
    return bool(frames) and frames[-1][0].startswith(_OURS)


def _is_ours(filename: str) -> bool:
    return os.path.dirname(filename) == _LAUNCH_DIR or filename in ("<string>", "<frozen runpy>")  # noqa: PTH120
