"""Data-parallel PyTorch training from one plain loop, with the same answer at every scale."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from lockstep.base import exit_status as _exit_status  # noqa: F401 - which begins to note how the script ends

if TYPE_CHECKING:
    from lockstep.base.config import RunConfig
    from lockstep.base.errors import (
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
    from lockstep.data.batch import Batch
    from lockstep.data.evaluation import Evaluation
    from lockstep.data.evaluation_pass import EvaluationBatch
    from lockstep.data.loader import PreparedLoader
    from lockstep.data.resumable import ResumableLoader, resumable
    from lockstep.joining.instrument import Instrument
    from lockstep.joining.team import Team
    from lockstep.launch.function import launch
    from lockstep.listener import Listener
    from lockstep.loop.hosted import HostedEpochs
    from lockstep.state.checkpoint.weights import load_weights
    from lockstep.tools.arguments import join
    from lockstep.world.comm.collectives import Collectives
    from lockstep.world.environment import World

    __version__: str

_MODULES = {
    "Batch": "lockstep.data.batch",
    "Collectives": "lockstep.world.comm.collectives",
    "Evaluation": "lockstep.data.evaluation",
    "EvaluationBatch": "lockstep.data.evaluation_pass",
    "HostedEpochs": "lockstep.loop.hosted",
    "Instrument": "lockstep.joining.instrument",
    "Listener": "lockstep.listener",
    "PreparedLoader": "lockstep.data.loader",
    "ResumableLoader": "lockstep.data.resumable",
    "RunConfig": "lockstep.base.config",
    "Team": "lockstep.joining.team",
    "World": "lockstep.world.environment",
    "join": "lockstep.joining.join",
    "launch": "lockstep.launch.function",
    "load_weights": "lockstep.state.checkpoint.weights",
    "resumable": "lockstep.data.resumable",
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
    # Names are imported on first use, so that the command line, in this package too, does not wait seconds for torch.
    if name == "__version__":
        # Defined in pyproject.toml; reading the installed metadata is slow.
        metadata = _import_module("importlib.metadata")
        try:
            return metadata.version("torch-lockstep")
        except metadata.PackageNotFoundError:  # run from a checkout without installation
            return "unknown"
    if name not in __all__:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_MODULES.get(name, "lockstep.base.errors")), name)
    return value


def __dir__() -> list[str]:
    return __all__
