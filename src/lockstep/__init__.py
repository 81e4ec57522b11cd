"""Data-parallel PyTorch training with bit-identical results on any number of processes."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from lockstep._base import exit_status as _exit_status  # noqa: F401 - which begins to note how the script ends

if TYPE_CHECKING:
    from lockstep._base.config import RunConfig
    from lockstep._base.errors import (
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
    from lockstep._data.batch import Batch
    from lockstep._data.evaluation import Evaluation
    from lockstep._data.evaluation_pass import EvaluationBatch
    from lockstep._data.loader import PreparedLoader
    from lockstep._data.resumable import ResumableLoader, resumable
    from lockstep._joining.instrument import Instrument
    from lockstep._joining.team import Team
    from lockstep._launch.function import launch
    from lockstep._listener import Listener
    from lockstep._loop.hosted import HostedEpochs
    from lockstep._state.checkpoint.weights import load_weights
    from lockstep._tools.arguments import join
    from lockstep._world.comm.collectives import Collectives
    from lockstep._world.environment import World

    __version__: str

_MODULES = {
    "Batch": "lockstep._data.batch",
    "Collectives": "lockstep._world.comm.collectives",
    "Evaluation": "lockstep._data.evaluation",
    "EvaluationBatch": "lockstep._data.evaluation_pass",
    "HostedEpochs": "lockstep._loop.hosted",
    "Instrument": "lockstep._joining.instrument",
    "Listener": "lockstep._listener",
    "PreparedLoader": "lockstep._data.loader",
    "ResumableLoader": "lockstep._data.resumable",
    "RunConfig": "lockstep._base.config",
    "Team": "lockstep._joining.team",
    "World": "lockstep._world.environment",
    "join": "lockstep._joining.join",
    "launch": "lockstep._launch.function",
    "load_weights": "lockstep._state.checkpoint.weights",
    "resumable": "lockstep._data.resumable",
}

__all__ = [
    "Batch",
    "CheckpointError",
    "Collectives",
    "ConfigError",
    "DataError",
    "Evaluation",
    "EvaluationBatch",
    "HostedEpochs",
    "Instrument",
    "LaunchError",
    "Listener",
    "LockstepError",
    "LossError",
    "MismatchError",
    "ModelError",
    "PeerError",
    "PreparedLoader",
    "ResumableLoader",
    "RunConfig",
    "Team",
    "UsageError",
    "World",
    "join",
    "launch",
    "load_weights",
    "resumable",
]


def __getattr__(name: str) -> object:
    # Names are imported on first use, so that the command line, in this package too, does not wait
    # seconds for torch.
    if name == "__version__":
        # Defined in pyproject.toml; reading the installed metadata is slow.
        metadata = _import_module("importlib.metadata")
        try:
            return metadata.version("torch-lockstep")
        except metadata.PackageNotFoundError:  # run from a checkout without installation
            return "unknown"
    if name not in __all__:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_MODULES.get(name, "lockstep._base.errors")), name)
    return value


def __dir__() -> list[str]:
    return __all__
