"""Checking before training that this process is one of the run, and that all machines have the same
software, script and run directory."""

from __future__ import annotations

import hashlib
import inspect
import multiprocessing
import platform
import sys
from pathlib import Path

import torch

from lockstep._base.errors import ConfigError, MismatchError, UsageError
from lockstep._state.recovery.software import version
from lockstep._state.rundir.fixed_settings import NO_SCRIPT
from lockstep._state.rundir.shared_dir import PATIENCE_S, hosts_without
from lockstep._world.comm.collectives import Collectives
from lockstep._world.environment import World


def check_software(world: World, collectives: Collectives) -> None:
    """Check that all machines have the same versions and script. Every rank must call it. Local on
    a single machine.

    Raises:
        MismatchError: versions or scripts differ; on every rank.
    """
    if world.num_nodes == 1:
        return
    everyone = collectives.all_gather_plain((world.host, _software()))
    first_host, first_software = everyone[0]
    for host, software in everyone:
        differences = [
            f"{name} is {first_software.get(name, 'missing')} on {first_host} and {software.get(name, 'missing')} on {host}"
            for name in first_software | software
            if software.get(name) != first_software.get(name)
        ]
        if differences:
            raise MismatchError(
                f"machines differ: {'; '.join(differences)}. Install the same versions on all machines and start the same "
                "script, so that their results agree.",
                code="software-differs",
            )


def _software() -> dict[str, str]:
    script = sys.argv[0] if sys.argv else ""
    path = Path(script)
    versions = {"lockstep": version(), "torch": str(torch.__version__), "python": platform.python_version()}
    if script not in NO_SCRIPT and path.is_file():
        versions[f"the script {path.name}"] = f"{hashlib.sha256(path.read_bytes()).hexdigest()[:12]} (its digest)"
    return versions


def check_run_dir_shared(run_dir: Path, token: str, world: World, collectives: Collectives) -> None:
    """Check that all machines see the run directory. Every rank must call it.

    Args:
        run_dir: absolute path, the same on every rank.
        token: unique to this launch, the same on every rank.

    Raises:
        ConfigError: a machine does not see it, or rank 0 cannot write there; on every rank.
    """
    if world.num_nodes == 1:
        return
    try:
        blind = hosts_without(run_dir, token, world, collectives)
    except OSError as error:
        raise ConfigError(
            f"rank 0 cannot write to the run directory {run_dir}: {error}. Set another one with --run-dir.",
            code="run-dir-not-writable",
        ) from None
    if blind:
        raise ConfigError(
            f"{', '.join(blind)} cannot see rank 0's run directory {run_dir} (a test file did not appear within "
            f"{PATIENCE_S:g} s). All machines read and write checkpoints there. Use --run-dir on a file system mounted "
            "at the same path on all of them.",
            code="run-dir-not-shared",
        )


def check_not_imported() -> None:
    """Checks that ``join`` was not called while ``multiprocessing`` imports the script: ``spawn``
    and ``forkserver`` do so in each process that they start, including a loader's workers, to find
    the functions and classes that these need.

    Raises:
        UsageError: it was. The process would wait for the others of a run that it does not belong
            to.
    """
    frame = inspect.currentframe()
    while frame is not None:
        # multiprocessing imports the script under this name. A function of it that the process
        # calls later has no such module below it on the stack.
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__mp_main__":
            raise UsageError(
                f"join() was called in {multiprocessing.current_process().name!r}, which multiprocessing started from "
                "this script (for example a loader worker with multiprocessing_context='spawn' or 'forkserver'). Such a "
                f"process runs the top level of {frame.f_code.co_filename} again. Move the training into a function, and "
                "call it under "
                '`if __name__ == "__main__":`. Classes and functions that workers need stay at the top level.',
                code="join-in-imported-script",
            )
        frame = frame.f_back
