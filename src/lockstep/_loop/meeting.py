"""Where the ranks meet before what all of them must do outside of their steps: an evaluation, the
end of a pass or of the run.

A rank that has left its loop while others continue would call a collective that is not theirs: Gloo
then aborts one of them because the sizes differ, or all wait until the timeout. So ranks first
count themselves in the store by which they have found each other. It takes a tenth of a
millisecond, has no size that could differ, and a rank that waits here can look where the others
are.

A meeting is one addition for each rank. With three ranks, of which one is elsewhere::

    rank 0   add m = hash("team.evaluate() 12")   sum =  m       not 3 m: waits for MET >= 1
    rank 1   add m                                sum = 2 m      not 3 m: waits
    rank 2   add m' = hash("the end ... 15")      sum = 2 m + m' not 3 m': waits
             nobody adds to MET: after 0.5 s, and then more and more seldom, each looks where the
             others are, and reports that they have parted

If all add the same m, the last one sees 3 m and adds 1 to MET, on which the others wait. m is at
least 2**16, so that a rank that is missing always shows: fewer than W additions of m are never W m.
Sums of different calls are equal by chance once in 65,536 (m has 16 bits of a hash)."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from lockstep._base.errors import PartedError, PeerError
from lockstep._loop.departure import Departure

_ARRIVED, _MET = "lockstep/arrived", "lockstep/met"
"""The keys of the store: the sum of what the ranks have added as they arrived, and the number of
meetings at which all arrived."""
_FOUND, _REPORTED = "lockstep/parting found", "lockstep/parting reported"
"""The keys of the store: the number of ranks that have found that they parted, and whether the
first of them has reported it."""
_REPORT_S = timedelta(seconds=5)
"""How long a rank waits for the report of another: a line in a file, unless that rank is ended."""
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.0001, 0.02
_MOST_ASKED_PER_S = 2000
"""The most requests a second to the store, by all ranks together that wait for the last: it also
serves their rendezvous."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.5, 60.0


class Parting(NamedTuple):
    """The finding that ranks can never meet again."""

    text: str
    """The ranks and where they are, and the remedy."""
    report: Callable[[], None]
    """Reports it, if this rank is the first that finds it."""


class Place(NamedTuple):
    """A place where a rank waits for the others."""

    number: int
    """The number of the meeting in this launch."""
    call: str
    """The call before which the rank waits, as text; empty: it does not wait any more."""


class Meetings:
    """The meetings of this process with the other ranks.

    Args:
        world_size: number of ranks.
        store: shared by them; None: they do not meet.
        timeout_s: how long to wait for others, in seconds.
    """

    def __init__(self, world_size: int, store: Store | None, timeout_s: float) -> None:
        self.place = Place(0, "")
        """The newest meeting. May be read from another thread."""
        self.left: Departure | None = None
        """The departure of this rank from its newest pass; None: it is in a pass, or before the
        first."""
        self.is_due = False
        """Whether a pass was left early since the last meeting."""
        self.look: Callable[[float], Parting | None] = lambda waited_s: None
        """The function that finds whether the ranks have parted, given how long this one has
        waited: set by an instrument, which can see where the others are."""
        self._sum = 0
        """The value of ``_ARRIVED`` if all ranks have come to the same meetings."""
        self._world_size = world_size
        self._store = store if world_size > 1 else None
        self._timeout_s = timeout_s

    @property
    def are_held(self) -> bool:
        """Whether there are other ranks to meet."""
        return self._store is not None

    def close(self) -> None:
        """Ends the meetings: later ones return immediately."""
        self._store = None

    def leave(self, departure: Departure, *, early: bool) -> None:
        """Notes that this rank has left its pass. Local."""
        self.left, self.is_due = departure, early

    def meet(self, call: str, step: int) -> None:
        """Waits until every rank is here. Every rank must call it, outside of ``batch.shards``.

        Args:
            call: before what, as text.
            step: the last one.

        Raises:
            PartedError: some never come, since they wait elsewhere for this one.
            PeerError: some did not come within the timeout.
        """
        self.is_due = False
        if self._store is None:
            return
        number = self.place.number + 1
        self.place = Place(number, call)
        # The last rank knows by the sum that all have come to the same place, and adds to _MET. If
        # they have not, no rank does, and each looks where the others are. The sum is never reset:
        # a reset could come before the last read. It grows by less than 2**17 W a meeting, in 64
        # bits.
        mine = (1 << 16) + zlib.crc32(f"{call} {step}".encode()) % (1 << 16)
        self._sum += mine * self._world_size
        try:
            # get() blocks until a key exists, with the store's timeout instead of this one.
            if number == 1:
                self._store.add(_MET, 0)
            if self._store.add(_ARRIVED, mine) == self._sum:
                self._store.add(_MET, 1)
            else:
                self._wait(self._store, number)
        # The store's host has exited. The call after this meeting reports that better.
        except DistError:
            self._store = None
        self.place = Place(number, "")

    def _wait(self, store: Store, number: int) -> None:
        began, pause_s, look_s = time.monotonic(), _FIRST_PAUSE_S, _FIRST_LOOK_S
        # Pauses grow from 0.1 ms, for ranks that arrive together, to 20 ms, or so much that W ranks
        # make no more than 2,000 requests a second: 0.5 s with 1,000 ranks.
        most_pause_s = max(_MOST_PAUSE_S, self._world_size / _MOST_ASKED_PER_S)
        while int(store.get(_MET)) < number:
            waited_s = time.monotonic() - began
            if waited_s >= look_s:
                # At growing intervals: a look takes time, and a rank that is seen to do something
                # does not count as waiting.
                look_s = waited_s + min(look_s, _LONGEST_LOOK_S)
                if (parting := self.look(waited_s)) is not None:
                    raise PartedError(parting.text, is_reported_here=_reports(store, parting))
            if waited_s > self._timeout_s:
                raise PeerError(
                    f"timed out after {self._timeout_s:g} s at {self.place.call}: another rank did not get there. It may be "
                    "stuck. Run `lockstep stacks` during the hang to see where.",
                    code="meeting-timeout",
                )
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, most_pause_s)


def _reports(store: Store, parting: Parting) -> bool:
    """Reports that the ranks have parted, if no other rank does, and returns whether this one did.

    The first rank that exits takes the others with it: their launcher ends them. So the report
    must be there before any of them exits, whichever rank looked first."""
    if store.add(_FOUND, 1) == 1:
        parting.report()
        store.set(_REPORTED, "")
        return True
    with contextlib.suppress(DistError):  # it has died, or its host has
        store.wait([_REPORTED], _REPORT_S)
    return False
