"""A worker, from the fork to the end of the user's program.

::

    fork server          os.fork(), signals blocked (serve)
        |
    run_worker           _settle    session, streams, environment, hooks: as if freshly started
        |                unblock signals, since a handler can report to the launcher now
        |                run the script as __main__, or the function of a launch
        |
        +- returns       {"end": ...}           then exit handlers, which may wait for other ranks
        +- Stopped       {"stopped_with": ...}  the run has saved itself
        +- sys.exit(n)   {"failure": ...}       SIGINT ignored from here, traces for exit handlers
        +- exception     {"failure": ...}       the same, then the script's own excepthook

The message is sent before exit handlers run, since these may hang: the launcher then knows the
cause, and ends the other ranks. Without a message (the worker was killed, or called ``os._exit``),
the exit status is all that is known.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pickle
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from typing_extensions import override

from lockstep._base import exit_status, process_observer
from lockstep._base.errors import LaunchError
from lockstep._base.stopping import SIGNALS, AuditFailed, Launcher, Stopped, under
from lockstep._base.tracebacks.excerpt import chain
from lockstep._base.tracebacks.frames import without_unseen
from lockstep._launch import ending, failures
from lockstep._launch.binding import bind_to_gpu
from lockstep._launch.dead_loader import with_its_cause
from lockstep._launch.fresh_process import apply_to_torch, forget_shadowed
from lockstep._launch.messages import Sender
from lockstep._launch.spec import Call, LaunchSpec, Script, worker_environ
from lockstep._world.machine.cores import num_cores
from lockstep._world.machine.open_files import free_spare, hold_spare


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to the fork server for a worker."""

    spec_path: str
    rank: int
    streams: tuple[int, ...]
    """Standard input, output and error."""
    sender: Sender
    """Sends messages to the launcher."""


class _LauncherAbove(Launcher):
    """This worker's launcher, for ``_base/stopping.py``."""

    def __init__(self, request: Request, spec: LaunchSpec) -> None:
        self._rank, self._sender, self._private_dir = request.rank, request.sender, spec.private_dir

    @override
    def watches(self, numbers: Sequence[int]) -> None:
        self._sender.send(watches=list(numbers))

    @override
    def is_ending(self) -> bool:
        return ending.is_over(self._private_dir)

    @override
    def stuck(self, report: str, how: str, status: int) -> bool:
        failure = failures.from_deadlock(self._rank, report, how, status)
        return self._sender.send(failure=failure)

    @override
    def unsaved(self) -> bool:
        return self._sender.send(is_unsaved=True)


def run_worker(request: Request) -> int:
    """Runs the program in this process, and returns its exit status. ``SystemExit`` of the program
    is raised again."""
    spec: LaunchSpec | None = None
    sender = request.sender
    try:
        spec = _settle(request)
        under(_LauncherAbove(request, spec))
        # Blocked since before the fork (`_fork_worker`).
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *SIGNALS})
        program, local_rank = spec.program, spec.local_rank(request.rank)
        if isinstance(program, Script) and program.is_executable:
            _become_program(program, local_rank)
        _tell_begin(spec, request.rank)
        if isinstance(program, Script):
            _run_script(program, local_rank)
        else:
            _run_call(program, request.rank, spec.private_dir)
    except SystemExit as error:
        if spec is None:
            raise
        if exit_status.is_success(error.code):
            exit_status.tell(error.code)
            _tell_end(failures.end_of(error), sender)
            raise
        if isinstance(error, Stopped):
            how = f"the run was stopped, with status {error.status}"
            process_observer.tell(lambda observer: observer.end(how))
            sender.send(stopped_with=error.status)
            raise
        _exit(error, spec, request)
    except BaseException as error:
        return _fail(error, spec, request)
    exit_status.tell(None)
    _tell_end(failures.end_of(), sender)
    return 0


def _tell_begin(spec: LaunchSpec, rank: int) -> None:
    if isinstance(spec.program, Script) and spec.program.starter is not None:
        return  # this process is no rank: it starts them
    program = spec.program.target if isinstance(spec.program, Script) else "a function call"
    process_observer.tell(lambda observer: observer.begin(spec.private_dir, rank, spec.world_size, program))


def _tell_end(end: failures.End, sender: Sender) -> None:
    process_observer.tell(lambda observer: observer.end(end.how))
    sender.send(end=end)


def _exit(error: SystemExit, spec: LaunchSpec, request: Request) -> NoReturn:
    """Exits after a program that has called for a failing exit itself."""
    # The launcher may interrupt this process before it knows that it is ending, and so its exit
    # handlers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Otherwise exit handlers could not see that this is a failure, and would mark the run as
    # finished.
    _leave_traces(error)
    if isinstance(error, AuditFailed):
        failure = failures.from_audit(request.rank, error)
    else:
        failure = failures.from_exit(request.rank, error.code)
    if not _tell(failure, spec, request.sender) or ending.is_stopped(spec.private_dir):
        raise error  # the interpreter prints the script's message, if it has one
    raise SystemExit(failure.exit_status) from None  # the launcher prints it


def _fail(error: BaseException, spec: LaunchSpec | None, request: Request) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for each in chain(error):
        without_unseen(each)
    cause = with_its_cause(error)  # before the signal that names it could be lost in what follows
    _leave_traces(error)
    if spec is None:
        raise error
    failure = failures.from_exception(request.rank, cause, process_observer.explain_error)
    _tell(failure, spec, request.sender)
    if not isinstance(error, KeyboardInterrupt):
        # The script may have installed its own hook. Ours, and that of torch.distributed around it,
        # are silent by now.
        sys.excepthook(type(error), error, error.__traceback__)
    return failure.exit_status


def _leave_traces(error: BaseException) -> None:
    """Records an uncaught exception for exit handlers, as the interpreter does, and for
    observers."""
    free_spare()
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    process_observer.tell(lambda observer: observer.fail(failures.traceback_of(error)))


def _install_hooks(private_dir: str) -> None:
    """Silences Python's hooks for uncaught exceptions while the launch is being ended.

    By then they would only report that processes lose each other, and are interrupted wherever they
    are (for example in a generator that is being closed). Loader workers inherit the hooks, and
    cause most of these reports."""

    def unless_ending(hook: Callable[..., Any]) -> Callable[..., None]:
        def report(*args: Any) -> None:
            if not ending.is_over(private_dir):
                hook(*args)

        return report

    sys.excepthook = unless_ending(sys.__excepthook__)
    threading.excepthook = unless_ending(threading.__excepthook__)
    sys.unraisablehook = unless_ending(sys.__unraisablehook__)


def _tell(failure: failures.Failure, spec: LaunchSpec, sender: Sender) -> bool:
    """Reports a failure to the launcher immediately: this process may still hang in its exit
    handlers.

    Returns:
        False if it cannot be reported (see ``Sender``), as in a fork of the worker: such a process
        ends as under python.
    """
    is_told = sender.send(failure=failure)
    if is_told:
        with contextlib.suppress(OSError):  # the launcher marks it, too
            ending.mark(spec.private_dir)
    return is_told


def _settle(request: Request) -> LaunchSpec:
    """Turns a copy of the server into what looks like a freshly started process."""
    os.setsid()  # the launcher finds the processes that it starts by their session
    for target, fd in enumerate(request.streams):
        os.dup2(fd, target)
        os.close(fd)
    spec = LaunchSpec.load(request.spec_path)
    # The server's own has values for libraries that it loads (see `server_environ`), not for
    # workers.
    os.environ.clear()
    os.environ.update(environ := worker_environ(spec, request.rank))
    os.chdir(spec.cwd)
    _reopen_streams()
    _install_hooks(spec.private_dir)
    if not faulthandler.is_enabled():
        # Stays open for the life of the process.
        file = failures.fault_path(spec.private_dir, request.rank).open("w", encoding="utf-8")
        faulthandler.enable(file=file)
    if "numpy.random" in sys.modules:
        # Python reseeds `random` after a fork. NumPy and torch do not, and ranks that set no seed
        # must draw different numbers.
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    hold_spare()
    share = max(1, num_cores() // spec.nproc)
    if spec.bind != "none":  # after cores were counted
        bind_to_gpu(spec.bind, spec.local_rank(request.rank) * (spec.config.devices_per_process or 1), request.rank)
    if not (isinstance(spec.program, Script) and spec.program.is_executable):
        apply_to_torch(environ, share, spec.nproc)
    return spec


def _reopen_streams() -> None:
    """Reopens the standard streams, with line buffering, so that lines of different ranks do not
    mix."""
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        old = getattr(sys, f"__{name}__")
        new = io.open(  # noqa: SIM115, UP020
            fd,
            "w" if fd else "r",
            buffering=1 if fd else -1,
            encoding=getattr(old, "encoding", None) or "utf-8",
            errors="backslashreplace" if fd == 2 else getattr(old, "errors", None),
            closefd=False,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _become_program(script: Script, local_rank: int) -> NoReturn:
    """Replaces this process by a program that need not be Python."""
    # Python ignores them, and programs expect them to end them
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(script.target, [script.target, *script.arguments(local_rank)])


def _run_script(script: Script, local_rank: int) -> None:
    if not getattr(sys.flags, "safe_path", False):
        # Like python: the directory of the real file, if the script is a link.
        first = str(Path.cwd()) if script.is_module else os.path.dirname(os.path.realpath(script.target))  # noqa: PTH120
        sys.path.insert(0, first)
        forget_shadowed(first)
    if script.is_module:
        spec = _find_module(script.target)
        loader: Any = spec.loader
        _exec_as_main(loader.get_code(spec.name), script, local_rank, path=spec.origin or script.target, spec=spec)
    else:
        path = os.path.abspath(script.target)  # noqa: PTH100  (resolving links would change __file__)
        # Without the `from __future__` of this module, which `compile` would apply to the script.
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        _exec_as_main(code, script, local_rank, path=path, spec=None)


def _exec_as_main(
    code: CodeType, script: Script, local_rank: int, *, path: str, spec: importlib.machinery.ModuleSpec | None
) -> None:
    """Runs code as the module ``__main__``, which exists until the end of the process: exit
    handlers may need it."""
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path,
        __spec__=spec,
        __package__=spec.parent if spec else None,
        __loader__=spec.loader if spec else importlib.machinery.SourceFileLoader("__main__", path),
        __cached__=spec.cached if spec else None,
        __builtins__=sys.modules["builtins"],
    )
    sys.modules["__main__"] = main
    sys.argv = [path if spec else script.target, *script.arguments(local_rank)]
    # For scripts that start themselves again. The interpreter options are those of the server.
    options = sys.orig_argv[1 : sys.orig_argv.index("-c")]
    sys.orig_argv = [sys.executable, *options, *(["-m"] if spec else []), script.target, *sys.argv[1:]]
    exec(code, main.__dict__)


def _find_module(name: str) -> importlib.machinery.ModuleSpec:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r} that can be run", name=name)
    return spec


def result_path(private_dir: str, rank: int) -> Path:
    """The file for the result of a call."""
    return Path(private_dir, f"result-{rank}.pickle")


importing_caller = False
"""True while a worker imports the script that called ``launch``, where another call would recurse
endlessly."""


def _run_call(call: Call, rank: int, private_dir: str) -> None:
    global importing_caller
    sys.path[:] = call.sys_path
    sys.argv = list(call.sys_argv)
    if call.sys_path:
        forget_shadowed(call.sys_path[0] or ".")
    importing_caller = True
    if call.main_module is not None:
        _become_caller(runpy.run_module(call.main_module, run_name="__mp_main__", alter_sys=True))
    elif call.main_path is not None:
        _become_caller(runpy.run_path(call.main_path, run_name="__mp_main__"))
    importing_caller = False
    fn, args = pickle.loads(call.payload)
    result = fn(*args)
    try:
        pickler: Any = importlib.import_module("cloudpickle") if call.by_value else pickle
        data = pickler.dumps(result)
    except Exception as error:
        raise LaunchError(
            f"rank {rank} finished, but its result, a {type(result).__qualname__}, cannot be pickled: "
            f"{error}. Return plain values, arrays or tensors",
            code="result-not-picklable",
        ) from error
    result_path(private_dir, rank).write_bytes(data)


def _become_caller(names: dict[str, Any]) -> None:
    """Makes the caller's script available as both ``__main__`` and ``__mp_main__``, as
    ``multiprocessing`` does."""
    module = ModuleType("__mp_main__")
    module.__dict__.update(names)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
