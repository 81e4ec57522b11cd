"""Every error lockstep raises on purpose.

::

    LockstepError
    ├── ConfigError      a setting or argument that cannot be meant            (also a ValueError)
    ├── UsageError       calls in an order, or a place, that cannot work       (also a RuntimeError)
    ├── MismatchError    the ranks of one run disagree about what they run     (also a RuntimeError)
    ├── DataError        a loader, data set or batch that cannot be dealt out  (also a ValueError)
    ├── ModelError       a model that cannot be trained as it is               (also a RuntimeError)
    ├── LossError        a loss that is not a scalar, or not a number          (also an ArithmeticError)
    ├── CheckpointError  a checkpoint that cannot be read, or was damaged       (also a RuntimeError)
    ├── PeerError        another rank failed, and this one cannot go on alone   (also a RuntimeError)
    └── LaunchError      worker processes that could not be started, or failed (also a RuntimeError)

A message says what is wrong, with which values, what would follow, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable


class LockstepError(Exception):
    """Base of all errors that lockstep raises on purpose."""


class ConfigError(LockstepError, ValueError):
    """A setting or argument that cannot be meant."""


class UsageError(LockstepError, RuntimeError):
    """Calls in an order, or a place, that cannot work."""


class MismatchError(LockstepError, RuntimeError):
    """The ranks of one run disagree about what they run."""


class DataError(LockstepError, ValueError):
    """A loader, data set or batch that cannot be dealt out to the shards."""


class ModelError(LockstepError, RuntimeError):
    """A model that cannot be trained as it is."""


class LossError(LockstepError, ArithmeticError):
    """A loss that is not a scalar, or not a number."""


class CheckpointError(LockstepError, RuntimeError):
    """A checkpoint that cannot be read, was damaged, or belongs to another version of lockstep."""


class PeerError(LockstepError, RuntimeError):
    """Another rank failed, and this one cannot go on without it: look at that one's error first."""


class LaunchError(LockstepError, RuntimeError):
    """Worker processes could not be started, or one of them failed.

    ``exit_status`` is what the command that launched them should end with.
    """

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> ConfigError:
    """The one way to say that a name is not known: it lists those that are."""
    return ConfigError(f"unknown {kind} {name!r}: choose one of {', '.join(valid)}")
