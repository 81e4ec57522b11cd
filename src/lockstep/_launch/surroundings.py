"""Other launchers that have started ``lockstep run``: an error if several trainings would run
instead of one, otherwise reported in a notice."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from lockstep._base.errors import ConfigError
from lockstep._world.environment import read_environment
from lockstep._world.job.several import BY_POD, check_several

_STARTS_COMMANDS = {"mpirun": "mpirun", "horovodrun": "horovodrun", "slurm": "srun"}
"""Launchers that may have started this command several times, and what users call them."""


def check_surroundings(
    environ: Mapping[str, str] | None = None, *, on_nodes: bool, is_alone: bool = False, is_typed: bool | None = None
) -> str | None:
    """A notice about another launcher that has started this command; None: there is none. (A worker
    of lockstep or torchrun may launch another script.)

    Args:
        environ: the command's environment variables; None: this process's.
        on_nodes: whether this is a launch on several machines.
        is_alone: whether the user asked for one machine (``--nnodes 1``).
        is_typed: whether standard input is a terminal (None: find out). Of the tasks of ``srun
            --pty bash``, only one has a terminal, in which the user types commands; in a terminal
            of a pod, a user tries something.

    Raises:
        ConfigError: it has started this command several times, and each would start a separate
            run in the same files; or variables contradict each other.
    """
    if on_nodes:
        return None
    try:
        environment = read_environment(environ)
    except ConfigError as error:
        if error.code == "launchers-contradict":
            raise
        return None  # an incomplete environment, set by hand, and not used here
    world, several = environment.world, environment.several
    launcher, number = world.launcher, world.world_size
    # a trial, of a command that knows what it starts
    is_alone = is_alone or bool(environment.asked)
    is_typed = os.isatty(0) if is_typed is None else is_typed
    if several is not None and launcher == "python" and not is_alone:
        if is_typed:
            several = dataclasses.replace(several, is_certain=False)
        return check_several(several, "add --nnodes 1")
    if number == 1 or launcher not in (*_STARTS_COMMANDS, "env"):
        return None
    # others give the terminal to all
    if launcher in _STARTS_COMMANDS and not (is_typed and launcher == "slurm"):
        name = _STARTS_COMMANDS[launcher]
        raise ConfigError(
            f"{name} started {number} copies of this command, and each would start its own run in the same files. Use one "
            f"launcher: `lockstep run --nproc-per-node {number} SCRIPT` once, or `python SCRIPT` under {name}. (For a "
            "launcher on each machine pass --nnodes.)",
            code="started-several-times",
        )
    if launcher == "env" and world.master is not None and not (is_typed or is_alone):
        # Platforms set these in each pod: Volcano, Vertex AI, PAI, PyTorchJob before PET_*.
        is_placed = "local_rank" not in world.unsaid
        right = "python SCRIPT" if is_placed else f"{BY_POD} SCRIPT"
        raise ConfigError(
            f"the environment has RANK={world.rank}, WORLD_SIZE={number} and MASTER_ADDR={world.master[0]}: this command was "
            f"started {number} times, and each would start its own run. Start instead: {right}. For this machine alone: add "
            "--nnodes 1",
            code="one-of-several",
        )
    return (
        f"the environment has rank {world.rank} of {number}, which is not used: the processes of this command are a separate "
        "run, with ranks from 0. For several machines pass --nnodes and --node-rank."
    )
