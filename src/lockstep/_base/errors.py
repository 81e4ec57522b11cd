"""All errors that lockstep raises deliberately. Each is also a built-in error, as which a script
may catch it.

A message gives the problem, the values, the consequence and the remedy.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from lockstep._base.escape_control import escape_control


def os_error_text(error: OSError) -> str:
    """Returns the system's message for an ``OSError``, without its number and path."""
    if error.errno == errno.ELOOP:  # the system's text blames the number of links
        return "a symbolic link leads in a circle"
    return error.strerror or str(error)


class LockstepError(Exception):
    """The base class of all errors that lockstep raises deliberately.

    Args:
        code: a stable name of the problem, such as ``world-size-above-shards``; empty: none.
            Programs and tests match the code, so that the message can be improved.
    """

    def __init__(self, *args: object, code: str = "") -> None:
        super().__init__(*args)
        self.code = code

    def __str__(self) -> str:
        # Values in the message may come from a file of another user.
        return escape_control(super().__str__(), has_lines=True)


class ConfigError(LockstepError, ValueError):
    """A setting or argument is invalid."""


class UsageError(LockstepError, RuntimeError):
    """A call is at the wrong time or place."""


class AbandonedError(UsageError):
    """A call that all ranks must make, in the ``finally`` or ``except`` block of an error that has
    left the loop on this rank only. That error is the cause: look at it first."""


class MismatchError(LockstepError, RuntimeError):
    """The ranks of a run differ, or the run differs from the checkpoint that it resumes from."""


class PartedError(MismatchError):
    """Some ranks left a loop that the others continue, so ranks would wait for each other forever.

    Args:
        is_reported_here: whether this rank reports the error, where each rank reports its errors
            itself.
    """

    def __init__(self, message: str, *, is_reported_here: bool = True, code: str = "") -> None:
        super().__init__(message, code=code)
        self.is_reported_here = is_reported_here


class DataError(LockstepError, ValueError):
    """A loader, dataset or batch cannot be split into shards, or cannot be read."""


class ModelError(LockstepError, RuntimeError):
    """A model cannot be trained without a change."""


class LossError(LockstepError, ArithmeticError):
    """A loss is not a scalar, or is NaN."""


class CheckpointError(LockstepError, RuntimeError):
    """A checkpoint is unreadable, damaged, or of another version of lockstep."""


class UnfitFileError(LockstepError, OSError):
    """A path leads to another kind of file than the one that is read or written there."""

    def __str__(self) -> str:
        # Without the error number: OSError would add its own text for it.
        return escape_control(f"{self.filename}: {self.strerror}")


class PeerError(LockstepError, RuntimeError):
    """Another rank failed or is missing, and this one cannot continue without it. Look at that
    rank's error first."""


class StrangerError(PeerError):
    """A process that does not belong to this run has connected as one of its ranks. The error is
    not a consequence of another rank's error."""


class LaunchError(LockstepError, RuntimeError):
    """Worker processes could not be started, or one of them failed.

    ``exit_status`` is the exit status for the command that launched them. ``summary`` is the error
    in one line, without the rank."""

    def __init__(self, message: str, exit_status: int = 1, summary: str = "", *, code: str = "") -> None:
        super().__init__(message, code=code)
        self.exit_status = exit_status
        self.summary = summary or message.partition("\n")[0]


def did_you_mean(name: object, valid: Iterable[str]) -> str:
    """Returns the one or two valid names that are most similar to an unknown one, as a clause;
    empty: none is similar."""
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
    # ``lockstep.__getattr__`` provides these names, so tracebacks print what users import.
    _public.__module__ = "lockstep"
