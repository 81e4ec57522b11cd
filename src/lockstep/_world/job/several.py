"""Signs that this process is one of a job of several machines, for which nothing has started one
training.

Platforms set variables in each of their pods or machines. Some of these variables only have a
meaning for a launcher. If a script is started by ``python`` then, each machine trains a separate
model, and each ends with status 0. lockstep does not read the variables of clouds to find its
ranks: they change, and a command shows what happens. It names them, with the command to write."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep._base.errors import ConfigError

MASTER = "--master-addr $MASTER_ADDR --master-port $MASTER_PORT"
BY_POD = f"lockstep run --nnodes $WORLD_SIZE --node-rank $RANK {MASTER}"
"""The command where RANK and WORLD_SIZE count pods."""


@dataclass(frozen=True, kw_only=True)
class Several:
    """The variables of a job of several machines, which this process does not use."""

    found: str
    """The variables and their values, for the user."""
    command: str
    """The command that would use them, without the script."""
    is_certain: bool
    """Whether the variables mean nothing else, so that a process without a launcher is a
    mistake."""
    alone: str = ""
    """The first words of a command that trains on this machine alone."""


@dataclass(frozen=True, kw_only=True)
class _Platform:
    """A platform that passes each machine its place in separate variables."""

    name: str
    count: str
    """The variable with the number of machines."""
    command: str
    number: Callable[[str], int] = int
    """Reads that number from the variable's value."""


# Each command is read from the platform's documentation: one line of text, in which a shell of the
# machine replaces the variables.
_PLATFORMS = (
    _Platform(
        name="SkyPilot",
        count="SKYPILOT_NUM_NODES",
        command=(
            "lockstep run --nnodes $SKYPILOT_NUM_NODES --node-rank $SKYPILOT_NODE_RANK --master-addr "
            '$(echo "$SKYPILOT_NODE_IPS" | head -n1) --nproc-per-node $SKYPILOT_NUM_GPUS_PER_NODE'
        ),
    ),
    _Platform(
        name="dstack",
        count="DSTACK_NODES_NUM",
        command=(
            "lockstep run --nnodes $DSTACK_NODES_NUM --node-rank $DSTACK_NODE_RANK --master-addr $DSTACK_MASTER_NODE_IP "
            "--nproc-per-node $DSTACK_GPUS_PER_NODE"
        ),
    ),
    _Platform(
        name="SageMaker",
        count="SM_HOSTS",
        command=(
            "lockstep run --nnodes N --node-rank R --master-addr algo-1 --nproc-per-node $SM_NUM_GPUS (N hosts are in "
            "SM_HOSTS; R is the place of SM_CURRENT_HOST among them, from 0)"
        ),
        number=lambda text: len(json.loads(text)),
    ),
)


def read_several(environ: Mapping[str, str], launcher: str) -> Several | None:
    """What the variables say of other machines or processes; None: nothing that lockstep knows.

    Args:
        launcher: what started this process (``World.launcher``). Launchers that start several
            processes set the same variables in these, which is no sign of anything.
    """
    if launcher not in ("python", "env"):
        return None
    nproc = _number(int, environ.get("PET_NPROC_PER_NODE", "")) or 1
    if launcher == "env":
        # Kubeflow's PyTorchJob: RANK counts pods, and WORLD_SIZE processes.
        if nproc == 1 or "LOCAL_RANK" in environ or "LOCAL_WORLD_SIZE" in environ:
            return None
        found = f"PET_NPROC_PER_NODE={nproc}, RANK={environ.get('RANK')} and WORLD_SIZE={environ['WORLD_SIZE']}"
        return Several(found=found, command="lockstep run", is_certain=False)
    nnodes = environ.get("PET_NNODES", "")
    if (_number(lambda text: int(text.rpartition(":")[2]), nnodes) or 1) > 1:
        return Several(
            found=f"PET_NNODES={nnodes}", command="lockstep run", is_certain=True, alone="env -u PET_NNODES python"
        )
    rank = _number(int, environ.get("RANK", ""))  # WORLD_SIZE is not set: then the launcher is "env"
    if rank is not None and environ.get("MASTER_ADDR"):
        return Several(
            found=f"RANK={rank} and MASTER_ADDR={environ['MASTER_ADDR']}, but not WORLD_SIZE",
            command=f"lockstep run --nnodes N --node-rank $RANK {MASTER}",
            is_certain=True,
            alone="env -u RANK python",
        )
    for platform in _PLATFORMS:
        if (_number(platform.number, environ.get(platform.count, "")) or 1) > 1:
            found = f"{platform.count}={shlex.quote(environ[platform.count])} ({platform.name})"
            return Several(found=found, command=platform.command, is_certain=False)
    if rank is not None:
        return Several(
            found=f"RANK={rank}, but not WORLD_SIZE",
            command="lockstep run --nnodes N --node-rank $RANK --master-addr HOST",
            is_certain=False,
        )
    if nproc > 1:
        return Several(found=f"PET_NPROC_PER_NODE={nproc}", command="lockstep run", is_certain=False)
    return None


def check_several(several: Several, alone: str, script: str = "SCRIPT") -> str:
    """A notice to the user about variables that this process does not use.

    Args:
        several: what was found.
        alone: how to start a training of this machine alone.
        script: the script, for the command.

    Raises:
        ConfigError: the variables belong to a job of several machines, and to nothing else.
    """
    if several.is_certain:
        raise ConfigError(
            f"the environment has {several.found}: this machine is one of several, and each would train a separate model. "
            f"Start on each: {several.command} {script}. For this machine alone: {alone}",
            code="one-of-several",
        )
    return (
        f"the environment has {several.found}, which is not used: if this command runs on several machines, each trains a "
        f"separate model. To train one model on all of them: {several.command} {script}"
    )


def _number(read: Callable[[str], int], text: str) -> int | None:
    try:
        return read(text)
    except (ValueError, TypeError):
        return None
