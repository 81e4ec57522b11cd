"""All errors that lockstep raises deliberately. Each is also a built-in error, as which a script
may catch it.

A message gives the problem, the values, the consequence and the remedy.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from lockstep._base.escape_control import escape_control


def os_error_text(error: OSError) -> str:
    """What the system says, without the error's number and path."""
    if error.errno == errno.ELOOP:  # "Too many levels of symbolic links", although one is enough
        return "a symbolic link leads in a circle"
    return error.strerror or str(error)


class LockstepError(Exception):
    """The base class of all errors that lockstep raises deliberately.

    Args:
        code: a stable name of what is wrong, as ``world-size-above-shards``; empty: it has none.
            Programs and tests match it, so that the message can be improved.
    """

    def __init__(self, *args: object, code: str = "") -> None:
        super().__init__(*args)
        self.code = code

    def __str__(self) -> str:
        # the values in it may come from anybody's file
        return escape_control(super().__str__(), has_lines=True)


class ConfigError(LockstepError, ValueError):
    """A setting or argument is invalid."""


class UsageError(LockstepError, RuntimeError):
    """A call is at the wrong time or place."""


class AbandonedError(UsageError):
    """A call that all ranks must make, in the ``finally`` or ``except`` of an error that has left
    the loop on this rank alone. That error is the cause: look at it first."""


class MismatchError(LockstepError, RuntimeError):
    """The ranks of a run differ, or the run differs from the checkpoint that it resumes from."""


class PartedError(MismatchError):
    """Some ranks have left a loop that others go on with, so that they wait for each other for
    ever.

    Args:
        is_reported_here: whether this rank is the one that tells it, where each rank tells its own
            errors.
    """

    def __init__(self, message: str, *, is_reported_here: bool = True, code: str = "") -> None:
        super().__init__(message, code=code)
        self.is_reported_here = is_reported_here


class DataError(LockstepError, ValueError):
    """A loader, data set or batch cannot be split into shards, or cannot be read."""


class ModelError(LockstepError, RuntimeError):
    """A model cannot be trained as it is."""


class LossError(LockstepError, ArithmeticError):
    """A loss is not a scalar, or is NaN."""


class CheckpointError(LockstepError, RuntimeError):
    """A checkpoint is unreadable, damaged, or of another version of lockstep."""


class UnfitFileError(LockstepError, OSError):
    """Something else is at a path than what is read or written there."""

    def __str__(self) -> str:
        # the number of the error would say something else
        return escape_control(f"{self.filename}: {self.strerror}")


class PeerError(LockstepError, RuntimeError):
    """Another rank failed or is missing, and this one cannot continue without it. Look at that
    rank's error first."""


class StrangerError(PeerError):
    """What has connected in the place of a rank does not belong to this run. It is no consequence
    of another rank's error."""


class LaunchError(LockstepError, RuntimeError):
    """Worker processes could not be started, or one of them failed.

    ``exit_status`` is the exit status for the command that launched them, and ``summary`` the error
    in one line, without which rank it was.
    """

    def __init__(self, message: str, exit_status: int = 1, summary: str = "", *, code: str = "") -> None:
        super().__init__(message, code=code)
        self.exit_status = exit_status
        self.summary = summary or message.partition("\n")[0]


def did_you_mean(name: object, valid: Iterable[str]) -> str:
    """The one or two valid names that are most like an unknown one, as a clause; empty: none is
    like it."""
    import difflib  # for an error only: the launcher starts without it

    near = difflib.get_close_matches(name, list(valid), n=2) if isinstance(name, str) else []
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> ConfigError:
    """The error for an unknown name, which lists the valid ones."""
    names = list(valid)
    return ConfigError(
        f"unknown {kind} {name!r}{did_you_mean(name, names)}: choose one of {', '.join(names)}", code="unknown-name"
    )


for _public in (
    LockstepError,
    ConfigError,
    UsageError,
    MismatchError,
    DataError,
    ModelError,
    LossError,
    CheckpointError,
    PeerError,
    LaunchError,
):
    # whose ``__getattr__`` has them: so tracebacks print the names that users import
    _public.__module__ = "lockstep"
