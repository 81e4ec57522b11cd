"""``lockstep.launch``: a function, in several processes, from a script or a notebook."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lockstep._base.config import RunConfig
from lockstep._base.errors import LaunchError, UsageError
from lockstep._base.stopping import INTERRUPTED_STATUS, SIGNALS, Stopped, end_unsaved, is_left_alone
from lockstep._launch import restarts, worker
from lockstep._launch.binding import check_binding
from lockstep._launch.local import check_fit, resolve_nproc, run_workers
from lockstep._launch.output import OutputPlan, to_python_stdout
from lockstep._launch.private import private_directory
from lockstep._launch.server import keep_server, take_server
from lockstep._launch.signals import Interrupts
from lockstep._launch.spec import Call, LaunchSpec

T = TypeVar("T")


def launch(
    fn: Callable[..., T],
    *args: Any,
    nproc: int | None = None,
    max_restarts: int = 0,
    bind: str = "none",
    **settings: Any,
) -> list[T]:
    """Runs ``fn(*args)`` in each of ``nproc`` new processes, and returns their results in rank
    order.

    Each process is a rank of one run, as under ``lockstep run``: ``fn`` calls ``lockstep.join()``
    and trains. The first call waits for the import of torch, which takes seconds; the fork server
    then stays, and later calls start immediately.

    Args:
        fn: A function that can be imported (from a module, or from the script that calls ``launch``
            under ``if __name__ == "__main__":``). One typed into a notebook, a lambda or a closure
            needs ``cloudpickle``.
        args: Its arguments. They and the results are pickled.
        nproc: Number of processes; None: one per CUDA GPU (or per
            ``devices_per_process`` GPUs); without GPUs, one.
        max_restarts: Maximum number of times that all processes are restarted after one has failed.
            Each restart is reported on standard error.
        bind: Binds each process, and its loader workers, to CPUs near its GPU: ``node``,
            ``socket``, ``exclusive`` or ``core-complex``, as ``torchrun --numa-binding`` does;
            ``none`` does not bind.
        settings: Settings of the run, as for ``lockstep run`` (fields of ``RunConfig``).

    Raises:
        ConfigError: a setting is invalid; nothing was started.
        UsageError: ``fn`` cannot be pickled, or the calling script lacks ``if __name__ ==
            "__main__":``.
        LaunchError: a process failed, and no restart was left; the message has the first failure in
            full. All processes have exited.
        KeyboardInterrupt: Ctrl-C; the run was saved if it was training, and all processes have
            exited.
        SystemExit: this process, or a worker, got SIGTERM or SIGUSR1, and the run was saved; the
            code is 75 (``lockstep._base.stopping.REQUEUE_STATUS``). Signals that this process
            handles itself are left to it.
    """
    if worker.importing_caller:
        raise UsageError(
            "launch() was called while a worker process imported the script, which would start "
            'processes endlessly. Call it under `if __name__ == "__main__":`',
            code="launch-at-import",
        )
    config = RunConfig.merge(settings, {})
    count = resolve_nproc(nproc, config)
    check_fit(config, count)
    restarts.check_max_restarts(max_restarts)
    check_binding(bind, config)
    call = pack(fn, args)
    plan = OutputPlan() if _stdout_is_plain() else OutputPlan(sink=to_python_stdout)
    signals = [number for number in SIGNALS if is_left_alone(number)]
    with Interrupts((signal.SIGINT, *signals)) as interrupts, private_directory() as private_dir:
        server = take_server([str(Path(entry).absolute()) for entry in sys.path if entry])
        spec = LaunchSpec(
            program=call,
            nproc=count,
            private_dir=private_dir,
            settings=settings,
            terminal=plan.on_terminal,
            max_restarts=max_restarts,
            bind=bind,
        )
        try:
            outcome = run_workers(spec, server, plan, interrupts)
        finally:
            keep_server(server)
        if server.is_alive() and server.serves_calls:
            server.warm()  # for the next call
        if outcome.failures:
            raise restarts.last_error(outcome.failures, outcome.spec, stopped_by=outcome.stopped_by)
        if outcome.stopped_with is not None and outcome.stopped_with != INTERRUPTED_STATUS:
            raise Stopped(outcome.stopped_with)
        if outcome.stopped_by is None and outcome.stopped_with is None:
            if outcome.is_unsaved:
                end_unsaved("launch: training finished, but some of it could NOT be saved (see the warnings above)")
            return [result_of(outcome.spec.private_dir, rank) for rank in range(count)]
    if outcome.stopped_by not in (None, signal.SIGINT):
        signal.raise_signal(outcome.stopped_by)  # with its usual effect on this process
    raise KeyboardInterrupt


def result_of(private_dir: str, rank: int) -> Any:
    """What the function returned on a rank.

    Raises:
        LaunchError: the process ended with status 0 before that.
    """
    # Classes of the calling script are pickled under this name in workers (``multiprocessing`` has
    # the same alias).
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    try:
        return pickle.loads(worker.result_path(private_dir, rank).read_bytes())
    except FileNotFoundError:
        raise LaunchError(f"rank {rank} exited with status 0 before the function returned") from None


def _stdout_is_plain() -> bool:
    """Whether ``print`` writes to descriptor 1. (Not in a notebook, nor under pytest.)"""
    with contextlib.suppress(Exception):
        return sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2
    return False


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    """Pickles a call so that a new process can unpickle it.

    Raises:
        UsageError: the function or its arguments cannot be pickled.
    """
    main_path, main_module = _caller()
    why = "it is defined where a new process cannot import it from (a notebook, or the interactive prompt)"
    try:
        payload = pickle.dumps((fn, args))
        # A pickle names a function by its module and name. (An argument with this text only causes
        # an import that is not needed.)
        needs_main = b"__main__" in payload
    except Exception as error:
        why = str(error)
    else:
        if not needs_main or main_path is not None or main_module is not None:
            return Call(
                payload=payload,
                main_path=main_path if needs_main else None,
                main_module=main_module if needs_main else None,
                sys_path=tuple(sys.path),
                sys_argv=tuple(sys.argv),
            )
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")
    except ImportError:
        name = getattr(fn, "__qualname__", repr(fn))
        raise UsageError(
            f"{name} cannot be sent to other processes: {why}. Move it to a file and import it from "
            "there, or install cloudpickle",
            code="function-not-importable",
        ) from None
    try:
        payload = cloudpickle.dumps((fn, args))
    except Exception as error:
        raise UsageError(
            f"the function or its arguments cannot be sent to other processes: {error}", code="function-not-picklable"
        ) from error
    return Call(payload=payload, sys_path=tuple(sys.path), sys_argv=tuple(sys.argv), by_value=True)


def _caller() -> tuple[str | None, str | None]:
    """The path of the running script, or the name of the module that ``python -m`` runs."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return None, spec.name
    path = getattr(main, "__file__", None)
    if path is not None and Path(path).is_file():
        return str(Path(path).absolute()), None
    return None, None
