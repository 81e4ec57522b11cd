"""Runs one trial: a script in a separate process, all of whose processes have exited afterwards;
and a record."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lockstep._base.config import RunConfig
from lockstep._base.option import options_of
from lockstep._events.failure import read_failure
from lockstep._launch.guard import die_with_parent
from lockstep._launch.processes import sweep
from lockstep._tools.trials.failure import describe_silent_failure, in_one_line
from lockstep._tools.trials.settings import TrialSettings
from lockstep._world import environment as world

_POLL_EVERY_S = 0.1
_LOOK_EVERY_S = 0.01  # for the moment to kill it
_MARK = "LOCKSTEP_ATTEMPT"
"""An environment variable of all processes of a trial, which identifies processes that have left
its session (torchrun's workers)."""
# what lockstep run and torchrun may take to end their own workers, before they are killed
_GRACE_S = 5.0

# What a launcher sets for its workers. A study may itself run under one (a batch job): its trials
# must not inherit.
_LAUNCHER_VARIABLES = (*world.VARIABLES, "MASTER_ADDR", "MASTER_PORT")
# Options of launchers, as Kubeflow sets them in each of several pods: a trial would wait there for
# the others.
_OF_OPTIONS = "PET_"
# What its mpirun asks of root, and of a machine with fewer cores than processes; other methods are
# not bound to cores either. (As variables, since other MPIs' mpirun would not know the options.)
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A launch of a script, and the place of its results."""

    directory: Path
    """The directory of the results of all trials."""
    name: str
    """The name of its run directory in there. Its log is next to that, because join() may refuse a
    directory that is not empty."""
    program: tuple[str, ...]
    """The script with its arguments, as they follow ``python`` on a command line."""
    launcher: str
    """The launcher, one of ``methods.LAUNCHERS``."""
    num_processes: int
    settings: Mapping[str, object]
    """Fields of ``RunConfig``, including the run directory, in addition to the script's."""
    of_script: TrialSettings = dataclasses.field(default_factory=TrialSettings)
    """The changes to the script's settings."""
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The requests to instruments other than the one of trials."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """More environment variables."""
    timeout_s: float | None = None
    kill_when: Callable[[], bool] | None = None
    """A condition; when it is true, all processes are killed immediately."""

    @property
    def run_dir(self) -> Path:
        """Its run directory."""
        return self.directory / self.name

    @property
    def log(self) -> str:
        """The file of its output, relative to ``directory``."""
        return f"{self.name}{'' if self.kill_when is None else '-killed'}.log"

    @property
    def failure(self) -> Path:
        """The file in which its first failure is recorded while it runs."""
        return (self.directory / f"{self.log}.failure").absolute()

    @property
    def command(self) -> tuple[str, ...]:
        """The command line. Pure, but for a look at where ``lockstep`` is installed."""
        count = f"--nproc-per-node={self.num_processes}"
        if self.launcher == "lockstep":
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]
            return (*_installed("lockstep", "lockstep._cli.main"), "run", count, *flags, *self.program)
        # --standalone picks a free port, so that two runs on one machine cannot connect to each
        # other.
        python = {
            "python": (sys.executable,),
            "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone", count),
            "mpirun": ("mpirun", "-np", str(self.num_processes), sys.executable),
            "horovodrun": (
                *(*_installed("horovodrun", "horovod.runner.launch"), "--gloo", "-np", str(self.num_processes)),
                *("-H", f"localhost:{self.num_processes}", sys.executable),
            ),
        }[self.launcher]
        return (*python, *self.program)

    def environment(self, mark: str) -> dict[str, str]:
        """This process's environment with as few changes as possible; with the settings, unless
        lockstep launches."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in _LAUNCHER_VARIABLES and not name.startswith(_OF_OPTIONS)
        }
        asked = json.dumps({"trials": dataclasses.asdict(self.of_script), **self.asked})
        environment.update(
            {
                _MARK: mark,
                world.ASKED: asked,
                world.FAILURE: str(self.failure),
                **(_OPEN_MPI if self.launcher == "mpirun" else {}),
                **self.variables,
            }
        )
        if self.launcher != "lockstep":
            environment[world.SETTINGS] = json.dumps(dict(self.settings))
        return environment


def _installed(name: str, module: str) -> tuple[str, ...]:
    """Returns the command of a program that is installed next to this interpreter."""
    script = Path(sys.executable).with_name(name)
    # The script first: with -m, Python would look for modules in the working directory before all
    # others.
    return (sys.executable, str(script)) if script.is_file() else (sys.executable, "-m", module)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The outcome of a trial."""

    status: str = "not run"
    """``ok``, ``failed``, ``timeout``, ``interrupted`` or ``not run``."""
    reason: str | None = None
    """The reason in one line; None if the status is ``ok``."""
    code: str = ""
    """The stable name of the reason, such as ``time-limit``; empty: none."""
    error: str = ""
    """The whole error; or the last lines of output, if the program recorded none."""
    command: tuple[str, ...] = ()
    run_dir: str | None = None
    """The run directory, relative to the directory of the results, like ``log``."""
    log: str | None = None
    exit_status: int | None = None
    """The status as in ``subprocess`` (negative: a signal); None if the trial was stopped, or
    killed by ``kill_when``."""
    command_s: float | None = None
    """The duration of the whole command, including start-up and evaluation."""


def passable(settings: Mapping[str, Any], but: Collection[str]) -> dict[str, Any]:
    """The settings of a command that a trial can take over, except those named in ``but``, and
    options of tools."""
    options = options_of(RunConfig)
    return {
        name: value
        for name, value in settings.items()
        if name in options
        and name not in but
        and not options[name].names
        and isinstance(value, (int, float, str))
        and not isinstance(value, bool)
    }


class Observer(Protocol):
    """An observer of the progress of trials."""

    def started(self, what: str) -> None:
        """A trial begins."""

    def waiting(self, elapsed_s: float) -> None:
        """Called several times a second while it runs."""

    def ended(self, outcome: str) -> None:
        """The trial has finished, with this outcome as text."""


def run_trial(trial: Trial, observer: Observer) -> Record:
    """Runs a trial to its end. None of its processes is left when this returns.

    A trial killed by ``kill_when`` has the status ``ok``, and no exit status. A KeyboardInterrupt
    stops the trial, not the caller, and sets the status."""
    log = trial.directory / trial.log
    log.parent.mkdir(parents=True, exist_ok=True)
    trial.failure.unlink(missing_ok=True)
    began, mark = time.monotonic(), uuid.uuid4().hex
    status, reason, code, error, exit_status, process = "ok", None, "", "", None, None
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                trial.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=trial.environment(mark),
                # if this process is killed, the trial must not go on unseen
                preexec_fn=die_with_parent,
                # Ctrl-C reaches this process alone, which then ends the trial in order
                start_new_session=True,
            )
            while (exit_status := _poll(process, _POLL_EVERY_S if trial.kill_when is None else _LOOK_EVERY_S)) is None:
                elapsed_s = time.monotonic() - began
                if trial.kill_when is not None and trial.kill_when():
                    sweep([process.pid], mark)
                    break
                if trial.timeout_s is not None and elapsed_s > trial.timeout_s:
                    status, code, reason = (
                        "timeout",
                        "time-limit",
                        f"did not finish within {trial.timeout_s:g} s and was stopped",
                    )
                    break
                observer.waiting(elapsed_s)
        except KeyboardInterrupt:
            status, reason = "interrupted", f"stopped from outside after {time.monotonic() - began:.0f} s"
        finally:
            wall_s = time.monotonic() - began
            if process is not None:
                _stop_all(process, mark)
    told = read_failure(trial.failure)
    trial.failure.unlink(missing_ok=True)
    if exit_status and told is not None:
        status, reason, error = "failed", in_one_line(told.summary), told.report.strip()
    elif exit_status:
        reason, error = describe_silent_failure(log.read_text(encoding="utf-8", errors="replace"), exit_status)
        status, reason = "failed", in_one_line(reason)
    return Record(
        status=status,
        reason=reason,
        code=code,
        error=error,
        command=trial.command,
        run_dir=trial.name,
        log=trial.log,
        exit_status=exit_status,
        command_s=wall_s,
    )


def _poll(process: subprocess.Popen[bytes], patience_s: float) -> int | None:
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return None


def _stop_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """Stops a trial's processes: its launcher receives SIGTERM first, and everything left after a
    grace period is killed.

    A second Ctrl-C meanwhile kills immediately. If all processes have exited, this only checks."""
    try:
        if process.poll() is None:
            # a launcher ends its workers better than we can: one signal, to it alone
            process.terminate()
            process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        sweep([process.pid], mark)
        process.wait()
