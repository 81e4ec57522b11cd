"""Runs one launch of a function that is tested. All its processes have exited when it returns."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep._base.errors import LaunchError, UsageError
from lockstep._base.stopping import SIGNALS, is_left_alone
from lockstep._launch import restarts, worker
from lockstep._launch.function import pack, result_of
from lockstep._launch.local import run_workers
from lockstep._launch.output import OutputPlan, Sink, to_python_stdout
from lockstep._launch.private import private_directory
from lockstep._launch.server import keep_server, take_server
from lockstep._launch.signals import Interrupts
from lockstep._launch.spec import Call, LaunchSpec
from lockstep._launch.supervise import LaunchResult
from lockstep._tools.trials.settings import TrialSettings
from lockstep.testing._errors import TimeLimitError
from lockstep.testing._ranks import Returned, Sent, call
from lockstep.testing._watch import Watch


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A launch of the function."""

    call: Call
    label: str
    """The name of the launch in messages: ``2 processes``."""
    num_processes: int
    settings: Mapping[str, Any]
    """Settings of the run, in addition to the function's."""
    of_function: TrialSettings = field(default_factory=TrialSettings)
    """Changes of the function's settings."""
    deadline: float
    """The deadline, in the time of ``time.monotonic``."""
    limit_s: float
    """The time limit of all launches together, for messages."""
    is_silent: bool = False
    """Whether to drop the output of the ranks, because it was printed before."""
    kill_when: Callable[[], bool] | None = None
    """A condition; when it is true, all processes are killed."""


def pack_tested(fn: functools.partial[Any]) -> Call:
    """The call that each rank of a trial makes.

    Raises:
        UsageError: the function or its arguments cannot be sent to other processes.
    """
    if worker.importing_caller:
        raise UsageError(
            "same_at() was called while a process of a test imported the file of the test, which would start processes "
            'endlessly. Call it in a test function, or under `if __name__ == "__main__":`.',
            code="called-on-import",
        )
    whole = pack(fn.func, (fn.args, fn.keywords))
    module = str(getattr(fn.func, "__module__", None) or type(fn.func).__module__)
    is_importable = not whole.by_value and module != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None) if is_importable else None
    return pack(call, (Sent(payload=whole.payload, module=module, file=file),))


def run_trial(trial: Trial) -> list[Returned] | None:
    """Runs the function. Returns its result on each rank; None: all ranks were killed by
    ``kill_when``.

    The output of the ranks goes to ``sys.stdout`` and ``sys.stderr``, prefixed with the number of
    processes and the rank.

    Raises:
        LaunchError: a rank failed; the message has the first failure in full.
        TimeLimitError: the deadline has passed.
        KeyboardInterrupt: Ctrl-C.
    """
    signals = [number for number in SIGNALS if is_left_alone(number)]
    with Interrupts((signal.SIGINT, *signals)) as interrupts, private_directory() as private_dir:
        spec = LaunchSpec(
            program=trial.call,
            nproc=trial.num_processes,
            private_dir=private_dir,
            settings=trial.settings,
            asked={"trials": vars(trial.of_function)},
        )
        outcome, watch = _launch(trial, spec, interrupts)
        if outcome.stopped_by is None:
            if watch.has_killed:
                return None
            _check(outcome, trial)
            return [_returned(outcome, trial, rank) for rank in range(trial.num_processes)]
    if outcome.stopped_by != signal.SIGINT:
        signal.raise_signal(outcome.stopped_by)  # with its usual effect on this process
    raise KeyboardInterrupt


def _launch(trial: Trial, spec: LaunchSpec, interrupts: Interrupts) -> tuple[LaunchResult, Watch]:
    server = take_server([str(Path(entry).absolute()) for entry in sys.path if entry])
    watch = Watch(server, Path(spec.private_dir), trial.deadline, trial.kill_when)
    watch.start()
    try:
        outcome = run_workers(
            spec, server, OutputPlan(sink=_drop if trial.is_silent else _to_python(trial.label)), interrupts
        )
    except LaunchError as error:
        if watch.at_limit is None:
            raise
        raise TimeLimitError(_out_of_time(trial, watch.at_limit)) from error
    finally:
        watch.close()
        keep_server(server)
    if server.is_alive() and server.serves_calls:
        server.warm()  # for the next trial
    if watch.at_limit is not None and outcome.stopped_by is None:
        raise TimeLimitError(_out_of_time(trial, watch.at_limit))
    return outcome, watch


def _check(outcome: LaunchResult, trial: Trial) -> None:
    """Raises the error of a launch that has failed."""
    if outcome.failures:
        error = restarts.last_error(outcome.failures, outcome.spec)
        raise LaunchError(f"with {trial.label}: {error}", error.exit_status, error.summary, code=error.code)
    if outcome.stopped_with is not None or outcome.is_unsaved:
        why = "was stopped" if outcome.stopped_with is not None else "could not save all of its end"
        raise LaunchError(f"with {trial.label}: the run {why}. See its output.", code="trial-not-finished")


def _returned(outcome: LaunchResult, trial: Trial, rank: int) -> Returned:
    try:
        returned: Returned = result_of(outcome.spec.private_dir, rank)
    except LaunchError as error:
        raise LaunchError(f"with {trial.label}: {error}", code=error.code) from None
    return returned


def _out_of_time(trial: Trial, at_limit: list[str]) -> str:
    lines = [
        f"the test did not finish within {trial.limit_s:g} s (limit_s), and its processes were killed, in the run with "
        f"{trial.label}. A shorter training finds nearly all differences. The ranks were at:",
        *(f"  {line}" for line in at_limit or ["unknown (no rank had reported)"]),
    ]
    return "\n".join(lines)


def _drop(rank: int, is_error: bool, line: bytes) -> None:
    pass


def _to_python(label: str) -> Sink:
    """Returns a sink that prefixes each line with the number of processes and the rank."""

    def write(rank: int, is_error: bool, line: bytes) -> None:
        to_python_stdout(rank, is_error, b"[%s, rank %d] %s" % (label.encode(), rank, line))

    return write
