"""What all machines of a run must have alike: the software, the script, and the run's directory. Asked before training."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from lockstep.comm.collectives import Collectives
from lockstep.errors import ConfigError, MismatchError
from lockstep.recovery.software import version
from lockstep.rundir.birth import NO_SCRIPT
from lockstep.rundir.sight import PATIENCE_S, leave_mark, remove_mark, sees_mark
from lockstep.world import World


def check_software(world: World, collectives: Collectives) -> list[str]:
    """Make sure that all machines run the same versions and the same script. Every rank must call it.

    One machine has only one of each, and is not asked.

    Returns:
        What differs and may: the script's arguments, for some are about a machine (where it has its data).

    Raises:
        MismatchError: they differ; on every rank.
    """
    if world.num_nodes == 1:
        return []
    own = sys.argv[1:] if world.local_rank == 0 else None  # some launchers put --local-rank there
    everyone = collectives.all_gather_object((world.host, _software(), own))
    first_host, first, arguments = everyone[0]
    for host, theirs, _ in everyone:
        found = [
            f"{name} is {first.get(name, 'missing')} on {first_host}, and {theirs.get(name, 'missing')} on {host}"
            for name in first | theirs
            if theirs.get(name) != first.get(name)
        ]
        if found:
            raise MismatchError(
                f"the machines differ: {'; '.join(found)}. They would not compute the same. Install the same versions on "
                "all, and start the same script"
            )
    if world.launcher == "hand":  # where each process is told who it is, its arguments do that
        return []
    for host, _, given in everyone:
        if given not in (None, arguments):
            return [
                f"the script's arguments are {_listed(arguments)} on {first_host}, and {_listed(given)} on {host}. Only what "
                "is about a machine may differ: all else must be the same everywhere, or the processes do not fit together"
            ]
    return []


def _listed(arguments: Sequence[str]) -> str:
    return f"`{shlex.join(arguments)}`" if arguments else "none"


def _software() -> dict[str, str]:
    script = sys.argv[0] if sys.argv else ""
    path = Path(script)
    found = {"lockstep": version(), "torch": torch.__version__, "python": platform.python_version()}
    if script not in NO_SCRIPT and path.is_file():
        found[f"the script {path.name}"] = f"{hashlib.sha256(path.read_bytes()).hexdigest()[:12]} (its digest)"
    return found


def check_sight(run_dir: Path, token: str, world: World, collectives: Collectives) -> None:
    """Make sure that all machines see the run's directory. Every rank must call it.

    Args:
        run_dir: absolute, the same on every rank.
        token: of this launch, the same on every rank and on those of no other launch.
        world: who is where.
        collectives: of all ranks.

    Raises:
        ConfigError: one does not, or rank 0 cannot write there; on every rank.
    """
    if world.num_nodes == 1:
        return
    error = None
    if world.rank == 0:
        try:
            leave_mark(run_dir, token)
        except OSError as failed:
            error = f"{failed}"
    error = collectives.broadcast_object(error)
    if error is not None:
        raise ConfigError(f"rank 0 cannot write into the run directory {run_dir}: {error}. Give another one with --run-dir")
    sees = world.local_rank > 0 or sees_mark(run_dir, token)
    blind = list(dict.fromkeys(host for host, seen in collectives.all_gather_object((world.host, sees)) if not seen))
    if world.rank == 0:
        remove_mark(run_dir, token)
    if blind:
        raise ConfigError(_blind(run_dir, blind))


def _blind(run_dir: Path, hosts: Sequence[str]) -> str:
    names = ", ".join(hosts)
    return (
        f"{names} cannot see the run directory {run_dir} of rank 0: what rank 0 wrote there was not found within "
        f"{PATIENCE_S:g} s. Checkpoints are written and read by all machines. Put it on a file system that all of them have "
        "under the same name: --run-dir DIR (run_dir=), or start the script in a directory there"
    )
