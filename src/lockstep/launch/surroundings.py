"""What the environment of ``lockstep run`` says that it does not do: refused where several trainings would come of it in place
of one, else said."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.errors import ConfigError
from lockstep.world import read_environment

_STARTS_COMMANDS = ("mpirun", "horovodrun")
_OTHERS = ("env", "slurm", "submitit")


def check_surroundings(environ: Mapping[str, str] | None = None, *, on_nodes: bool) -> str | None:
    """What the user should know of another launcher, which has started this command; None: nothing. (In a worker of lockstep's
    or torchrun's a script may well launch another.)

    Args:
        environ: of the command; None: this process's.
        on_nodes: whether this is one machine's part of a launch on several.

    Raises:
        ConfigError: it has started this command several times, and each would be a training by itself.
    """
    if on_nodes:
        return None
    try:
        world = read_environment(environ).world
    except ConfigError:  # half of what a launcher would set: by hand, and not used here
        return None
    launcher, number = world.launcher, world.world_size
    if number == 1:
        return None
    if launcher in _STARTS_COMMANDS:
        raise ConfigError(
            f"{launcher} has started this command {number} times, and each would start a training of its own, in the same "
            f"files. Let one of the two start the processes: lockstep run --nproc-per-node {number} SCRIPT; or {launcher} -np "
            f"{number} python SCRIPT. (For a launcher on each machine give --nnodes.)"
        )
    if launcher in _OTHERS:
        return (
            f"the environment says rank {world.rank} of {number}, which is not used: the processes of this command are a "
            "training of their own, with ranks from 0. For several machines there are --nnodes and --node-rank."
        )
    return None
