"""Who this process is among the processes of a run. The only file that reads the environment."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.errors import ConfigError

SETTINGS = "LOCKSTEP_SETTINGS"
"""A JSON object of RunConfig fields: how a launcher hands the command line's settings to its workers."""
STORE = "LOCKSTEP_STORE"
"""A path on this machine: the file at which the workers of ``lockstep run`` meet."""
TERMINAL = "LOCKSTEP_TERMINAL"
"""``1`` if what rank 0 prints goes to a terminal, although its own standard output may be a pipe."""

CALL = "LOCKSTEP_CALL"
"""Set where ``lockstep.launch`` runs a function in this process, and not a script of its own."""
LAUNCH = "LOCKSTEP_LAUNCH"
"""A name for one launch, the same for all of its restarts."""
_RESTART = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among the processes of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the processes of this node."""
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    launcher: str = "python"
    """Who started this process: ``lockstep``, ``torchrun``, ``env`` (anyone who sets RANK), or ``python``."""
    is_program: bool = True
    """Whether this process runs a script, that the same command would run again."""
    launch: str = ""
    """A name for this launch, the same when its processes were started again; empty: none was given."""
    restart: int = 0
    """How many times the launcher has started the processes of this launch before."""
    store_path: str | None = None
    """Where workers of one machine meet without opening a port; None: through ``env://``, or alone."""

    @property
    def host(self) -> str:
        """The name of this machine."""
        return socket.gethostname()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """All that lockstep takes from the environment variables, read once."""

    world: World
    settings: Mapping[str, Any]
    """What the launcher's command line asked for (names of RunConfig fields)."""
    terminal: bool | None
    """Whether the launcher shows rank 0's output on a terminal; None: no launcher said."""


# One row a launcher: its name, the variable that gives it away, then the variables that hold rank, world size,
# local rank, local world size and node rank. The first row whose variable is set is taken.
_LAUNCHERS = (
    ("lockstep", STORE, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    ("env", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
)


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"the environment variable {name} is {text!r}, which is not a whole number: "
            "the launcher that started this process must set it"
        ) from None


def _read_world(environ: Mapping[str, str]) -> World:
    for launcher, mark, rank, world_size, local_rank, local_world_size, node_rank in _LAUNCHERS:
        if mark not in environ:
            continue
        size = _integer(environ, world_size)
        local_size = _integer(environ, local_world_size, size)
        for name, value in ((world_size, size), (local_world_size, local_size)):
            if value < 1:
                raise ConfigError(f"{name}={value}: a number of processes is 1 or more")
        world = World(
            rank=_integer(environ, rank),
            world_size=size,
            local_rank=_integer(environ, local_rank, _integer(environ, rank) % local_size),
            local_world_size=local_size,
            node_rank=_integer(environ, node_rank, _integer(environ, rank) // local_size),
            num_nodes=-(-size // local_size),
            launcher=launcher,
            is_program=CALL not in environ,
            launch=environ.get(LAUNCH, ""),
            restart=_integer(environ, _RESTART, 0),
            store_path=environ.get(STORE),
        )
        if not 0 <= world.rank < world.world_size:
            raise ConfigError(f"{rank}={world.rank} with {world_size}={world.world_size}: ranks go from 0 to {size - 1}")
        return world
    return World()


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """What the launcher set. ``environ`` is for tests; a run reads ``os.environ``, once.

    Raises:
        ConfigError: a variable is not what it should be.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(SETTINGS, "{}")
    try:
        settings = json.loads(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise ConfigError(f"the environment variable {SETTINGS} is {text!r}, which is not a JSON object")
    return Environment(
        world=_read_world(environ),
        settings=settings,
        terminal=environ[TERMINAL] == "1" if TERMINAL in environ else None,
    )
