"""Other launchers that have started ``lockstep run``: an error if several trainings would run
instead of one, else a notice."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lockstep._base.errors import ConfigError
from lockstep._world.environment import read_environment

_STARTS_COMMANDS = {"mpirun": "mpirun", "horovodrun": "horovodrun", "slurm": "srun"}
"""Launchers that may have started this command several times, and what users call them."""


def check_surroundings(
    environ: Mapping[str, str] | None = None, *, on_nodes: bool, is_typed: bool | None = None
) -> str | None:
    """A notice about another launcher that has started this command; None: there is none. (A worker
    of lockstep or torchrun may launch another script.)

    Args:
        environ: of the command; None: this process's.
        on_nodes: whether this is a launch on several machines.
        is_typed: whether standard input is a terminal (None: find out): of the tasks of ``srun
            --pty bash``, that is the one in which the user types commands.

    Raises:
        ConfigError: it has started this command several times, and each would be a training of its
            own, in the same files.
    """
    if on_nodes:
        return None
    try:
        world = read_environment(environ).world
    except ConfigError:  # an incomplete environment, set by hand, and not used here
        return None
    launcher, number = world.launcher, world.world_size
    if number == 1 or launcher not in (*_STARTS_COMMANDS, "env"):
        return None
    # other launchers give it to all
    is_typed = launcher == "slurm" and os.isatty(0) if is_typed is None else is_typed
    if launcher in _STARTS_COMMANDS and not is_typed:
        name = _STARTS_COMMANDS[launcher]
        raise ConfigError(
            f"{name} has started this command {number} times, and each would start a training of its own, in "
            f"the same files. Let one of the two start the processes: lockstep run --nproc-per-node {number} SCRIPT, once; "
            "or python SCRIPT in its place. (For a launcher on each machine give --nnodes.)"
        )
    return (
        f"the environment says rank {world.rank} of {number}, which is not used: the processes of this command are a "
        "training of their own, with ranks from 0. For several machines there are --nnodes and --node-rank."
    )
