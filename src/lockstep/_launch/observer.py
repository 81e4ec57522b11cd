"""Observes a launch from the launcher's process: the interface between the launcher and the tools
that explain a run.

The launcher knows processes: their start, their signals and their end. Observers know what the
processes were doing. They are extensions of the kind ``observers``, each created with a ``Launch``
for each start of workers. There may be none: the launcher then reports failures with what the
workers themselves have reported. ``_base/process_observer.py`` observes a worker from its own
process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lockstep._launch.failures import Failure


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of workers."""

    private_dir: str
    """A directory for this start alone, deleted when it ends. The observers of the worker processes
    receive it, too."""
    world_size: int
    """The number of processes of the launch, on all machines."""
    ranks: Sequence[int]
    """The ranks of this machine."""
    end: Callable[[Failure], None]
    """A function that ends the launch with a failure, unless the launch is ending already. Any
    thread may call it."""


class JoinedRun(NamedTuple):
    """The state of a run after its launch."""

    newest: int | None
    """The step of the newest checkpoint; None: there is no checkpoint."""

    def as_words(self) -> str:
        """Returns what the same command does now, as text."""
        if self.newest is None:
            return "there is no checkpoint, so the same command starts over"
        return f"repeat the command to resume after step {self.newest}"


class Observer:
    """Base class of observers of a launch. Its methods do nothing until you override them.

    The launcher calls them in its own thread while workers run, so they must not block for long. It
    drops an ``Exception`` that one raises, so that an observer cannot stop the workers.

    Args:
        launch: the launch, none of whose workers has started yet.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def ended(self, rank: int, status: int) -> None:
        """Receives the exit status of a worker's process, or minus the signal that ended it."""

    def close(self) -> None:
        """Releases what the observer uses: all workers have exited, and no other call follows."""

    # Why ranks have failed

    def with_cause(self, failure: Failure) -> Failure | None:
        """Returns a failure with its likely cause and a remedy; None: unknown.

        The launcher does not call it for failures that only report missing ranks.
        """
        return None

    def last_seen(self, rank: int) -> str:
        """Returns what a worker that was killed, or stopped for too long, was doing; empty:
        unknown."""
        return ""

    def who_waits(self, echoes: Collection[int]) -> str:
        """Returns which ranks wait for which others now, as text; empty: unknown.

        Args:
            echoes: the ranks that have just failed because they had waited for too long.
        """
        return ""

    def mismatch(self, reported: Sequence[Failure]) -> str:
        """Returns how the collectives of ranks whose communication failed differ; empty: unknown,
        or they match."""
        return ""

    def joined(self) -> JoinedRun | None:
        """Returns the run that the workers have joined; None: none, or unknown."""
        return None

    # Workers whose program has finished, but whose process does not exit

    def linger(self, ranks: Collection[int]) -> Collection[int]:
        """Reports what prevents these ranks from exiting, and returns the ranks that it could
        explain."""
        return ()
