"""Starts a script as a process of its own, waits for it, and leaves none of its processes behind."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep import world
from lockstep.analysis.methods import Row
from lockstep.launch.guard import die_with_parent
from lockstep.launch.processes import sweep

_POLL_EVERY_S = 0.1
_LOOK_EVERY_S = 0.01  # for the moment to kill it
_MARK = "LOCKSTEP_ATTEMPT"
"""In the environment of all processes of a run, by which those are found that left its session (torchrun's workers)."""
_GRACE_S = 5.0  # what lockstep run and torchrun may take to end their own workers, before they are killed

# What a launcher sets for its workers. A comparison may itself run under one (a batch job): its rows must not inherit.
_LAUNCHER_VARIABLES = (*world.VARIABLES, "MASTER_ADDR", "MASTER_PORT")
# What its mpirun asks of root, and of a machine with fewer cores than processes; other methods are not bound to cores either.
# (As variables, since other MPIs' mpirun would not know the options.)
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a row's process is started."""

    command: tuple[str, ...]
    settings: Mapping[str, object]
    """Handed over in the environment, for launchers that know nothing of lockstep; empty for ``lockstep run``."""
    threads: int | None = None
    """For libraries that count them before the script joins; None: the environment stays as it is."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """More environment variables for it."""


def start_of(row: Row, *, program: Sequence[str], shards: int, threads: int, seed: int | None, run_dir: Path) -> Start:
    """The command of a row. Pure, but for a look at where ``lockstep`` is installed.

    Settings that the user did not ask for (a seed) are not passed, so that the script's own stay in force.
    """
    settings: dict[str, object] = {
        "strategy": row.method.strategy,
        "precision": row.method.precision,
        "shards": shards,
        "threads": threads,
        "run_dir": str(run_dir),
    }
    if seed is not None:
        settings["seed"] = seed
    return start_under(
        row.method.launcher,
        num_processes=row.num_processes,
        settings=settings,
        program=program,
        threads=threads,
    )


def start_under(
    launcher: str,
    *,
    num_processes: int,
    settings: Mapping[str, object],
    program: Sequence[str],
    threads: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Start:
    """The command that runs a program (see ``Task.program``) under a launcher (one of ``methods.LAUNCHERS``) with these fields
    of ``RunConfig``."""
    count = f"--nproc-per-node={num_processes}"
    if launcher == "lockstep":
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = (*_program("lockstep", "lockstep.cli.main"), "run", count, *flags, *program)
        return Start(command=command, settings={}, threads=threads, variables=variables or {})
    # --standalone picks a free port, so that two runs on one machine cannot meet each other.
    python = {
        "python": (sys.executable,),
        "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone", count),
        "mpirun": ("mpirun", "-np", str(num_processes), sys.executable),
        "horovodrun": (
            *(*_program("horovodrun", "horovod.runner.launch"), "--gloo", "-np", str(num_processes)),
            *("-H", f"localhost:{num_processes}", sys.executable),
        ),
    }[launcher]
    variables = {**(_OPEN_MPI if launcher == "mpirun" else {}), **(variables or {})}
    return Start(command=(*python, *program), settings=settings, threads=threads, variables=variables)


def _program(name: str, module: str) -> tuple[str, ...]:
    """A program that was installed beside this interpreter."""
    script = Path(sys.executable).with_name(name)
    # The script first: with -m, Python would look for modules in the working directory before all others.
    return (sys.executable, str(script)) if script.is_file() else (sys.executable, "-m", module)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a row's process ended."""

    status: str
    """``exited``, ``timeout``, ``interrupted``, or ``killed``: as was asked for."""
    exit_status: int | None
    """As ``subprocess`` has it (negative: a signal); None if it was stopped."""
    wall_s: float


def run_to_end(
    start: Start,
    *,
    log: Path,
    timeout_s: float | None,
    on_tick: Callable[[float], None],
    kill_when: Callable[[], bool] | None = None,
) -> Ended:
    """Run a command to its end, its output into ``log``. None of its processes is left when this returns.

    ``on_tick`` is called ten times a second with the seconds so far. With ``kill_when``, all of its processes are killed at
    once as soon as that is true. A KeyboardInterrupt ends the run, not the caller: the status says so.
    """
    began, mark = time.monotonic(), uuid.uuid4().hex
    status, exit_status, process = "exited", None, None
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                start.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(start, mark),
                preexec_fn=die_with_parent,  # if this process is killed, the row must not go on unseen
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the row in order
            )
            while (exit_status := _poll(process, _POLL_EVERY_S if kill_when is None else _LOOK_EVERY_S)) is None:
                elapsed_s = time.monotonic() - began
                if kill_when is not None and kill_when():
                    status = "killed"
                    sweep([process.pid], mark)
                    break
                if timeout_s is not None and elapsed_s > timeout_s:
                    status = "timeout"
                    break
                on_tick(elapsed_s)
        except KeyboardInterrupt:
            status = "interrupted"
        finally:
            wall_s = time.monotonic() - began
            if process is not None:
                _stop_all(process, mark)
    return Ended(status=status, exit_status=exit_status, wall_s=wall_s)


def _poll(process: subprocess.Popen[bytes], patience_s: float) -> int | None:
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return None


def _environment(start: Start, mark: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER_VARIABLES}
    environment[_MARK] = mark
    if start.threads is not None:  # torchrun would set it to 1, and other launchers would not
        environment["OMP_NUM_THREADS"] = str(start.threads)
    environment.update(start.variables)
    if start.settings:
        environment[world.SETTINGS] = json.dumps(start.settings)
    return environment


def _stop_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a row's processes: its launcher is asked first, and whatever is left after a grace period is killed.

    A second Ctrl-C meanwhile kills at once. If all have ended by themselves, this only looks.
    """
    try:
        if process.poll() is None:
            process.terminate()  # a launcher ends its workers better than we can: one signal, to it alone
            process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        sweep([process.pid], mark)
        process.wait()
