"""A round, from one rendezvous of the nodes to the next: what their launchers exchange meanwhile,
through their store.

Each launcher sends a heartbeat several times a second. The first node checks all heartbeats, and
puts what it has seen into its own. The others check only that one, and all only if it is silent:
otherwise requests would grow with the square of the number of nodes. A heartbeat is a number that
changes, so the machines' clocks do not matter. A launcher with a reason to end the round (its
processes failed, another node is silent, one wants to join, the launcher was stopped) announces it;
then all end their processes, and each reports how its own ended. The entries of a round have a
separate prefix, so that nothing of an earlier round can be taken for this one's::

    machine/N, answer/N   the rendezvous: a node's machine, and its place (places)
    machines              all machines, by number
    beat/N                a node's heartbeat; node 0's contains what it has seen of all
    done/N                its processes exited successfully
    ended                 the node that announced the end first: set once, so all agree on it
    report/N              how the round ended on a node
    left/N                its launcher needs the store no longer

A node that is silent is not waited for at the end. Each node acts on the silences that node 0
publishes, and looks itself only at node 0 (at all, once node 0 is silent). So all leave out the
same nodes, and judge the same reports."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from lockstep._launch.elastic.heartbeat import Heartbeat
from lockstep._launch.elastic.places import Machine, Place, read_machines
from lockstep._launch.elastic.signed import SignedStore
from lockstep._launch.failures import Failure

_GONE_BEATS = 12
"""Missed heartbeats after which a launcher is no longer waited for at the end of a round."""
_QUIET_BEATS = 4
"""Missed heartbeats that the first node mentions to the others."""
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.4


@dataclass(frozen=True, kw_only=True)
class Report:
    """The end of a round on a node."""

    joins: bool = False
    """Whether its processes were ended because another node joins."""
    is_first: bool = False
    """Whether this node announced the end first: in the store, since clocks differ."""
    failures: tuple[Failure, ...] = ()
    """The failures of its processes, the cause first."""
    signal: int = 0
    """The signal that stopped its launcher, so that this node leaves; 0: none did."""
    stopped_with: int = 0
    """The exit status of a run that was asked to stop, and saved itself or could not
    (``_base/stopping.py``); 0: it was not."""

    def to_json(self) -> str:
        """The report as JSON, for the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Report:
        """The inverse of ``to_json``."""
        fields: dict[str, Any] = json.loads(text)
        return Report(**{**fields, "failures": tuple(Failure(**failure) for failure in fields["failures"])})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one node has seen of all."""

    num_done: int = 0
    has_stopped: bool = False
    num_waiting: int = 0
    silence_s: Sequence[tuple[int, float]] = ()
    """Nodes that have been silent for a while: number, and seconds."""

    @staticmethod
    def from_beat(beat: bytes) -> Seen:
        """From a heartbeat of the first node; empty: it has not sent one yet."""
        return Seen(**json.loads(beat.split(maxsplit=1)[1])) if beat else Seen()


class Round:
    """One round, on one node. Must be closed.

    Args:
        store: of the launchers, with the prefix of this round, for the thread that creates this.
        heartbeat: with a separate client.
        place: of this node.
        look: returns the number of nodes that wait to join.
    """

    def __init__(self, store: SignedStore, heartbeat: Heartbeat, place: Place, look: Callable[[], int]) -> None:
        self.place = place
        self.number = place.number
        self.num_nodes = place.num_nodes
        self.has_ended = False
        """Whether a node has announced the end."""
        self.num_waiting = 0
        """Number of nodes that wait to join."""
        self.num_done = 0
        """Number of nodes whose processes have all ended by themselves and successfully."""
        self.has_stopped = False
        """Whether some of them ended because the run was asked to stop."""
        self._store = store
        self._heartbeat = heartbeat
        self._look = look
        self._count = 0
        watched = range(self.num_nodes) if self.number == 0 else range(1)
        # Of nodes that are watched: the last heartbeat, and when it changed.
        self._beats = {number: (b"", time.monotonic()) for number in watched}
        self._silence_s: dict[int, float] = {}  # of others, as the first node tells it
        self._num_seen_waiting = 0
        self._gone_s = _GONE_BEATS * heartbeat.beat_s
        self._heartbeat.also(self._beat)

    @cached_property
    def machines(self) -> Sequence[Machine]:
        """All nodes, by number. Asks the store for them."""
        return read_machines(self._store)

    def silent(self, limit_s: float) -> list[int]:
        """The other nodes without a heartbeat for longer than this, while the store did answer."""
        if self._heartbeat.silence_s() > limit_s:
            return []
        # As of the store's last answer: its own silence is no silence of the nodes.
        now = self._heartbeat.answered_at
        watched = {number: now - at for number, (_, at) in self._beats.items() if self.number}
        # The first node acts on what it has published, too, so that all nodes act on the same.
        silence_s = {**self._silence_s, **watched}
        return sorted(number for number, seconds in silence_s.items() if number != self.number and seconds > limit_s)

    def done(self, stopped_with: int | None) -> None:
        """Announces that this node's processes exited successfully, or with this status because
        they were asked to stop."""
        # 0 means that the script finished. Any other status is of a run that was asked to stop,
        # which the other nodes must learn before they take the run as finished.
        self._store.set(f"done/{self.number}", str(stopped_with or 0))

    def end(self) -> bool:
        """Announces the end of the round; returns ``Report.is_first``."""
        self.has_ended = True
        me = str(self.number)
        return self._store.compare_set("ended", "", me) == me.encode()

    def report(self, report: Report) -> None:
        """Publishes how the round ended on this node."""
        self._store.set(f"report/{self.number}", report.to_json())

    def reports(self, wait: Callable[[float], None]) -> Mapping[int, Report]:
        """The reports of all nodes, by number; waits for them, except for silent nodes."""
        pause_s = _LEAST_PAUSE_S
        while True:
            gone = {number for number in self.silent(self._gone_s) if not self._store.check([f"report/{number}"])}
            there = [number for number in range(self.num_nodes) if number not in gone]
            names = [f"report/{number}" for number in there]
            if self._store.check(names):
                reports = (Report.from_json(text.decode()) for text in self._store.multi_get(names))
                return dict(zip(there, reports, strict=True))
            if self._heartbeat.error is not None:
                raise self._heartbeat.error
            wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Ends the heartbeats of this round."""
        self._heartbeat.also(None)

    def _beat(self, client: SignedStore) -> None:
        client = self._store.through(client)
        self._count += 1
        if self.number:  # it has to look for itself while the first node is silent
            watched = range(self.num_nodes if 0 in self.silent(self._gone_s) else 1)
            self._beats = {number: self._beats.get(number, (b"", time.monotonic())) for number in watched}
        names = [f"beat/{number}" for number in self._beats]
        self._note_beats(dict(zip(list(self._beats), client.multi_get(names), strict=True)))
        looks_at_all = len(self._beats) == self.num_nodes
        seen = self._look_at_all(client) if looks_at_all else Seen.from_beat(self._beats[0][0])
        told = "" if self.number else json.dumps(asdict(seen))
        client.set(f"beat/{self.number}", f"{self._count} {told}")
        self.has_stopped, self.num_done, self.num_waiting = seen.has_stopped, seen.num_done, seen.num_waiting
        self._silence_s = dict(seen.silence_s)
        self.has_ended = self.has_ended or client.check(["ended"])
        if looks_at_all:  # last, since torchelastic's state may be locked for a while
            self._num_seen_waiting = self._look()

    def _look_at_all(self, client: SignedStore) -> Seen:
        done = [value for value in client.multi_get([f"done/{number}" for number in range(self.num_nodes)]) if value]
        now = time.monotonic()
        return Seen(
            num_done=len(done),
            has_stopped=any(value != b"0" for value in done),
            num_waiting=self._num_seen_waiting,
            silence_s=[
                (number, now - at)
                for number, (_, at) in self._beats.items()
                if now - at > _QUIET_BEATS * self._heartbeat.beat_s
            ],
        )

    def _note_beats(self, beats: Mapping[int, bytes]) -> None:
        now, gap_s = time.monotonic(), self._heartbeat.silence_s()
        for number, beat in beats.items():
            before, at = self._beats[number]
            # While the store did not answer, no heartbeat could be seen: that time does not count.
            self._beats[number] = (
                (beat, now) if beat != before else (before, at + max(0.0, gap_s - 2 * self._heartbeat.beat_s))
            )
