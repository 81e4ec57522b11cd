"""Waiting for the other ranks at a rendezvous."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from lockstep._base.errors import PeerError

_TELL_AFTER_S = 3.0
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


def has_timed_out(error: RuntimeError) -> bool:
    """Whether an error of a collective reports that it took longer than its timeout. (Gloo has no
    class for it.)"""
    return "imed out" in str(error)


class Waiter:
    """A wait with a timeout: after a few seconds it prints what for, and in the end it raises
    PeerError.

    Args:
        world_size: the expected number of ranks.
        endpoint: the rendezvous, for messages.
        timeout_s: seconds to wait, from now.
    """

    def __init__(self, rank: int, world_size: int, endpoint: str, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._began = time.monotonic()
        self._pause_s = _LEAST_PAUSE_S
        self._has_printed = False

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 or more."""
        return max(0.0, self._began + self.timeout_s - time.monotonic())

    def pause(self, missing: Callable[[], Sequence[int]], hint: str = "") -> None:
        """Sleeps briefly.

        Args:
            missing: returns the ranks that have not arrived, as far as is known.
            hint: a possible cause, for the messages.

        Raises:
            PeerError: the timeout has expired.
        """
        waited_s = time.monotonic() - self._began
        if waited_s > self.timeout_s:
            raise PeerError(
                f"rank {self.rank} of {self.world_size} timed out: it waited {self.timeout_s:g} s at "
                f"{self.endpoint} for {_ranks(missing())}{hint and f' ({hint})'}. Check that all ranks "
                "were started, with the same endpoint and number of processes, and that none has failed. "
                "(To wait longer: timeout_s=, or --timeout.)",
                code="rendezvous-timeout",
            )
        if waited_s > _TELL_AFTER_S and not self._has_printed:
            self._has_printed = True
            print(
                f"lockstep: rank {self.rank} of {self.world_size} is waiting at {self.endpoint} for "
                f"{_ranks(missing())}{hint and f' ({hint})'}, for up to {self.timeout_s:g} s",
                file=sys.stderr,
                flush=True,
            )
        # Beyond the end of the timeout by the least pause: at the end itself the remaining time is
        # 0, and pauses of that length would only use the processor.
        time.sleep(min(self._pause_s, self.remaining_s + _LEAST_PAUSE_S))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:10]))
    return f"ranks {shown}" + (f" and {len(ranks) - 10} others" if len(ranks) > 10 else "")
