"""What observes a launch, in the launcher's process: the seam between the launcher and what
explains a run.

The launcher knows processes: their start, their signals, their end. What they were doing is for
observers to say. These are extensions of the kind ``observers``, called with a ``Launch`` for each
start of workers. There need not be any: failures are then reported with what the workers themselves
have reported. What observes a worker in its own process: ``process_observer``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lockstep._launch.failures import Failure


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of workers."""

    private_dir: str
    """A directory for this start alone, removed at its end. The workers' observers know it, too."""
    world_size: int
    ranks: Sequence[int]
    """The ranks of this machine."""
    end: Callable[[Failure], None]
    """Ends the launch, with this as its failure, unless it is ending already. May be called from
    any thread."""


class JoinedRun(NamedTuple):
    """The state of a run after its launch."""

    newest: int | None
    """The step of its newest checkpoint; None: it has none."""

    def as_words(self) -> str:
        """What the same command does now."""
        if self.newest is None:
            return "there is no checkpoint, so the same command starts over"
        return f"repeat the command to resume after step {self.newest}"


class Observer:
    """Base class of observers, with methods that do nothing, and know nothing. They are called in
    the launcher's thread while workers run, so they must not block for long; an ``Exception`` that
    one raises is dropped: the workers matter more.

    Args:
        launch: none of its workers has started yet.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def ended(self, rank: int, status: int) -> None:
        """A worker's process has exited, with this exit status, or minus the signal."""

    def close(self) -> None:
        """All workers have exited, and nothing more is asked."""

    # Why ranks have failed

    def with_cause(self, failure: Failure) -> Failure | None:
        """A failure with its likely cause and a remedy, which its own message does not name. (Not
        one that only reports that other ranks were missing.)"""
        return None

    def last_seen(self, rank: int) -> str:
        """What a worker that was killed, or was stopped for too long, was last seen doing."""
        return ""

    def who_waits(self, echoes: Collection[int]) -> str:
        """Which ranks wait for which others now; ``echoes`` have just failed because they had
        waited for too long."""
        return ""

    def mismatch(self, reported: Sequence[Failure]) -> str:
        """Which collectives ranks had called whose communication has failed, if these do not belong
        together."""
        return ""

    def joined(self) -> JoinedRun | None:
        """The run that the workers have joined; None: none, or that is not known."""
        return None

    # Workers whose program is over, and whose process does not end

    def linger(self, ranks: Collection[int]) -> Collection[int]:
        """Reports what keeps these ranks from exiting; returns the ranks that this could report
        of."""
        return ()
