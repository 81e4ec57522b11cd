"""Data-parallel PyTorch training from one plain loop, with the same answer at every scale."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.checkpoint.weights import load_weights
    from lockstep.comm.collectives import Collectives
    from lockstep.config import RunConfig
    from lockstep.data.evaluation import Evaluation
    from lockstep.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        LaunchError,
        LockstepError,
        LossError,
        MismatchError,
        ModelError,
        PeerError,
        UsageError,
    )
    from lockstep.joining.join import join
    from lockstep.launch.function import launch
    from lockstep.team import Team
    from lockstep.world import World

    __version__: str

_PLACES = {
    "CheckpointError": "lockstep.errors",
    "Collectives": "lockstep.comm.collectives",
    "ConfigError": "lockstep.errors",
    "DataError": "lockstep.errors",
    "Evaluation": "lockstep.data.evaluation",
    "LaunchError": "lockstep.errors",
    "LockstepError": "lockstep.errors",
    "LossError": "lockstep.errors",
    "MismatchError": "lockstep.errors",
    "ModelError": "lockstep.errors",
    "PeerError": "lockstep.errors",
    "RunConfig": "lockstep.config",
    "Team": "lockstep.team",
    "UsageError": "lockstep.errors",
    "World": "lockstep.world",
    "join": "lockstep.joining.join",
    "launch": "lockstep.launch.function",
    "load_weights": "lockstep.checkpoint.weights",
}

__all__ = [
    "CheckpointError",
    "Collectives",
    "ConfigError",
    "DataError",
    "Evaluation",
    "LaunchError",
    "LockstepError",
    "LossError",
    "MismatchError",
    "ModelError",
    "PeerError",
    "RunConfig",
    "Team",
    "UsageError",
    "World",
    "join",
    "launch",
    "load_weights",
]


def __getattr__(name: str) -> object:
    # The command line lives in this package too, and must not wait seconds for torch: names are looked up when used.
    if name == "__version__":
        # The one place is pyproject.toml, and to read what was installed of it takes a while.
        metadata = _import_module("importlib.metadata")
        try:
            return metadata.version("torch-lockstep")
        except metadata.PackageNotFoundError:  # run from a checkout that was not installed
            return "unknown"
    if name not in _PLACES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
