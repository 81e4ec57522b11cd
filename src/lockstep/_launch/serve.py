"""The fork server's process: imports torch once, then forks a worker for every request.

It never starts a parallel region and never initializes CUDA: neither survives a fork. Its protocol
is JSON over a Unix socket that keeps message boundaries::

    launcher -> server   {"key": K, "rank": R, "spec": PATH}   start a worker, with open files:
                                                               stdin, stdout, stderr, the pipe
                         {"import": [NAME, ...]}               import now what workers may need
    server -> launcher   {"ready": true}                       imports are complete
                         {"key": K, "error": TEXT}             could not be forked
                         {"key": K, "status": S}               exited: status, or minus the signal
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import warnings
import weakref
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from lockstep._base import process_observer
from lockstep._base.stopping import SIGNALS
from lockstep._launch import fresh_process
from lockstep._launch.failures import status_of
from lockstep._launch.guard import die_with_parent, guard_descendants
from lockstep._launch.messages import Sender
from lockstep._launch.worker import Request, run_worker
from lockstep._world.machine.threads import libraries

PRELOAD = ("torch", "torch.distributed", "lockstep._joining.preload", "lockstep._sync.ddp", "lockstep._sync.exact")
"""Modules imported before the first worker, which each of them delays: only modules that nearly
every script needs."""
MAX_MESSAGE_BYTES = 65536
_statuses: dict[int, int] = {}
"""Exit status by process id: in a worker its own; empty in the server."""


def main(control_fd: int, at_start: Collection[str] = ()) -> NoReturn:
    """Serves until the launcher closes its end; in a forked child, runs the worker and exits with
    its status.

    ``at_start``: the modules that the interpreter itself had imported.
    """
    fresh_process.at_start = frozenset(at_start)
    # Signals that ask a run to stop may be sent to every process of a job; they are for the
    # launcher, which ends this one.
    dispositions: dict[signal.Signals, Any] = {
        # A background job inherits "ignored", which workers must not.
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGUSR1: signal.getsignal(signal.SIGUSR1),
    }
    for number in dispositions:
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    die_with_parent()
    if _is_abandoned(control):  # the launcher ended before the line above
        os._exit(0)
    _preload(PRELOAD)
    guard_descendants()
    request = _serve(control)
    # Only a child gets here, with nothing of the server on its stack: from now on it is an ordinary
    # process.
    for number, disposition in dispositions.items():
        signal.signal(number, disposition)
    _run_to_end(request)


def _is_abandoned(control: socket.socket) -> bool:
    """Whether the launcher has closed its end."""
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _run_to_end(request: Request) -> NoReturn:
    """Runs the worker, and exits as usual, except that the interpreter is not finalized: see
    ``_leave``."""
    worker = os.getpid()
    _statuses[worker] = 1
    try:
        _statuses[worker] = run_worker(request)
    except SystemExit as error:
        _statuses[worker] = status_of(error.code)
        raise
    sys.exit(_statuses[worker])


def _leave() -> None:
    """Ends a worker, whose non-daemon threads and other exit handlers are finished, without
    finalizing the interpreter.

    That would take a fifth of a second, and native threads that need the interpreter meanwhile
    (Gloo's, with the tensors of the last collective) would abort the process.
    """
    if os.getpid() not in _statuses:  # a process that the script forked
        return
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(_statuses[os.getpid()])


# Registered first, so that it runs last, also after the exit handlers of preloaded modules
# (multiprocessing waits for the processes that a script has started; weakref and logging finalize).
atexit.register(_leave)


def _preload(modules: Sequence[str]) -> None:
    gc.disable()  # collections during imports find nothing, and cost a tenth of the time
    for name in modules:
        # An import that fails here fails again in the worker, where the error belongs to the script
        # that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    libraries()  # looked up once for all workers
    process_observer.installed()
    _keep_at_exit()
    # A collection in a worker must not write to, and so copy, every page shared with the others.
    # Garbage is kept: collecting it would take a tenth of a second before the first worker.
    gc.freeze()
    gc.enable()


def _keep_at_exit() -> None:
    """Disables the finalizers of preloaded modules at exit: PyTorch would remove its operators from
    its dispatcher one by one, which takes 30 ms of each worker's processor time, and copies 30 MB
    of pages shared with the others.

    Finalizers created by a script run as usual. (The registry is private; the property of its
    entries is public.)"""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


def _serve(control: socket.socket) -> Request:
    """The server's loop; returns only in a forked child."""
    wake_r, wake_w = socket.socketpair()
    wake_r.setblocking(False)
    wake_w.setblocking(False)
    signal.set_wakeup_fd(wake_w.fileno(), warn_on_full_buffer=False)
    # A handler must exist for the wake-up to be written.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    keys: dict[int, int] = {}  # by process id
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_r, selectors.EVENT_READ)
        _tell(control, ready=True)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    wake_r.recv(4096)
                _reap(control, keys)
            if control in ready:
                request = _answer(control, keys)
                if request is not None:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for end in (control, wake_r, wake_w):
                        end.close()
                    return request


def _answer(control: socket.socket, keys: dict[int, int]) -> Request | None:
    """Handles one message. Returns the request in a forked child, None in the server."""
    message, fds = b"", list[int]()
    with contextlib.suppress(ConnectionResetError):  # the launcher has ended with messages unread
        message, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 4)
    if not message:
        os._exit(0)  # the launcher has ended; finalizing the interpreter would only take time
    asked = json.loads(message)
    if "import" in asked:
        if not all(name in sys.modules for name in asked["import"]):
            _preload(asked["import"])
        return None
    return _fork_worker(control, keys, asked, fds)


def _fork_worker(control: socket.socket, keys: dict[int, int], asked: dict[str, Any], fds: list[int]) -> Request | None:
    # Blocked until the worker can report them (see run_worker): they must not interrupt Python's
    # own work after a fork.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *SIGNALS})
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns about forking with threads. Any here belong to a BLAS, which stops
            # them for the fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError as error:
        _tell(control, key=asked["key"], error=f"fork failed: {error}")
        pid = -1
    if pid == 0:
        # The worker sends its pid itself: it may end the server before that could, and the launcher
        # must know the pid.
        *streams, pipe = fds
        return Request(spec_path=asked["spec"], rank=asked["rank"], streams=tuple(streams), sender=Sender(pipe))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *SIGNALS})
    for fd in fds:
        os.close(fd)
    if pid > 0:
        keys[pid] = asked["key"]
    return None


def _reap(control: socket.socket, keys: dict[int, int]) -> None:
    while keys:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid in keys:
            _tell(control, key=keys.pop(pid), status=os.waitstatus_to_exitcode(status))


def _tell(control: socket.socket, **message: Any) -> None:
    try:
        control.send(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
