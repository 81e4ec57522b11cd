"""What the environment of ``lockstep run`` says that it does not do: refused where several trainings would come of it in place
of one, else said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.launch.source import Source
from lockstep.world import STORE

_SIZES = {"OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun", "HOROVOD_SIZE": "horovodrun"}
_IN_SLURM = "SLURM_STEP_ID"
_OF_LAUNCHERS = (STORE, "TORCHELASTIC_RUN_ID")
"""In the worker of a launcher that is known to set the rest: a script of its own may launch another."""


def check_surroundings(environ: Mapping[str, str], *, on_nodes: bool) -> str | None:
    """What the user should know of other launchers' variables; None: nothing.

    Args:
        environ: of the command.
        on_nodes: whether this is one machine's part of a launch on several.

    Raises:
        ConfigError: another launcher has started this command several times, and each would be a training by itself.
    """
    if on_nodes or any(name in environ for name in _OF_LAUNCHERS):
        return None
    for name, launcher in _SIZES.items():
        if _IN_SLURM not in environ and environ.get(name, "1") not in ("", "1"):
            number = environ[name]
            raise ConfigError(
                f"{launcher} has started this command {number} times ({name}={number}), and each would start a training of its "
                f"own, in the same files. Let one of the two start the processes: lockstep run --nproc-per-node {number} "
                f"SCRIPT; or {launcher} -np {number} python SCRIPT. (For a launcher on each machine give --nnodes.)"
            )
    said = [f"{name}={environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in environ]
    if environ.get("WORLD_SIZE", "1") != "1":
        return (
            f"{' and '.join(said)} in the environment are not used: the processes of this command are a training of their own, "
            "with ranks from 0. For several machines there are --nnodes and --node-rank."
        )
    return None


def check_horovod(source: Path | None, target: str, nproc: int) -> None:
    """Scripts of Horovod's own are told who they are by ``horovodrun`` alone.

    Raises:
        ConfigError: this is one, and several processes were asked for: each would train a model by itself.
    """
    if source is None or nproc == 1:
        return
    place = Source.read(source).starts_horovod()
    if place is not None:
        raise ConfigError(
            f"{place} calls hvd.init(), which takes its ranks from horovodrun or mpirun: started by lockstep run, each of the "
            f"{nproc} processes would train a model of its own. Start it with: horovodrun -np {nproc} python {target}. "
            "(To port it to lockstep.join(), which has --strategy horovod: docs/methods.md.)"
        )
