"""A round, from one rendezvous of the nodes to the next: what their launchers exchange meanwhile, through their store.

Each launcher sends a heartbeat several times a second, and checks those of the others. A heartbeat is a number that changes, so
the machines' clocks do not matter. A launcher with a reason to end the round (its processes failed, another node is silent, one
wants to join, the launcher was stopped) announces it; then all end their processes, and each reports how its own ended. The
entries of a round have a prefix of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from lockstep.launch.elastic.heartbeat import BEAT_S, Heartbeat
from lockstep.launch.elastic.signed import SignedStore
from lockstep.launch.exchange import Exchange
from lockstep.launch.failures import Failure

_GONE_S = 3.0
"""Silence after which a launcher is no longer waited for at the end of a round."""

_BEATS_PER_MESSAGE = 4
"""Heartbeats between two messages of ``Exchange``, at least: about as often as a launcher looks."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node that takes part in a round."""

    host: str
    address: str
    num_ranks: int
    first_rank: int = 0
    """The first rank of its processes: known once all machines are."""
    keeps_store: bool = False
    """Whether its launcher keeps the launchers' store."""

    @property
    def ranks(self) -> str:
        """For the user."""
        last = self.first_rank + self.num_ranks - 1
        return f"rank {last}" if self.num_ranks == 1 else f"ranks {self.first_rank} to {last}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a round has ended on a node."""

    why: str
    """``failed``; ``stopped`` by a signal; ``saved``: the run was asked to stop, and its processes end by themselves; ``join``:
    another node joins; ``lost``: another one is silent; ``followed``: another one announced the end first."""
    order: int
    """1 on the first node to announce the end, 2 on the next: counted in the store, since clocks differ."""
    failures: tuple[Failure, ...] = ()
    """Of its processes, the cause first."""
    signal: int = 0
    """The signal that stopped its launcher, so that this node leaves; 0: none did."""
    stopped_with: int = 0
    """The exit status of a run that was asked to stop, and saved itself or could not (``base.stopping``); 0: it was not."""

    def to_json(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Report:
        """The inverse of ``to_json``."""
        fields: dict[str, Any] = json.loads(text)
        return Report(**{**fields, "failures": tuple(Failure(**failure) for failure in fields["failures"])})


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the first node announces at the beginning of a round."""

    used: int
    """Number of restarts after failures so far."""
    master_port: int
    """A free port of its machine."""


class Round:
    """One round, on one node. Must be closed.

    Args:
        store: of the launchers, for the thread that creates this.
        heartbeat: with a client of its own.
        prefix: of this round's entries.
        number: of this node.
        num_nodes: number of nodes.
        look: returns the number of nodes that wait to join.
    """

    def __init__(
        self, store: SignedStore, heartbeat: Heartbeat, prefix: str, number: int, num_nodes: int, look: Callable[[], int]
    ) -> None:
        self.number = number
        self.exchange = Exchange(number, num_nodes)
        """For messages about workers."""
        self.machines: tuple[Machine, ...] = ()
        self.has_ended = False
        """Whether a node has announced the end."""
        self.num_waiting = 0
        """Number of nodes that wait to join."""
        self.num_done = 0
        """Number of nodes whose processes have all ended by themselves and successfully."""
        self.has_stopped = False
        """Whether some of them ended because the run was asked to stop."""
        self._store = store.under(prefix)
        self._client = heartbeat.store.under(prefix)
        self._heartbeat = heartbeat
        self._num_nodes = num_nodes
        self._look = look
        self._count = 0
        self._posted, self._num_posted = "", 0  # this node's last message, and their number
        self._received: dict[int, bytes] = {}  # number of the last message read, by node
        self._beats: list[tuple[bytes, float]] = []  # the last heartbeat of each node, and when it changed

    def begin(self, machine: Machine, start: Start | None) -> Start:
        """Announce this node, and wait for the others. Every node must call it; all return the ``start`` of the first."""
        self._store.set(f"beat/{self.number}", "")
        self._store.set(f"done/{self.number}", "")
        self._store.set(f"message/{self.number}", "")
        self._store.set(f"machine/{self.number}", json.dumps(asdict(machine)))
        if start is not None:
            self._store.set("start", json.dumps(asdict(start)))
        machines = [Machine(**json.loads(self._store.get(f"machine/{number}"))) for number in range(self._num_nodes)]
        firsts = accumulate((each.num_ranks for each in machines), initial=0)
        self.machines = tuple(replace(each, first_rank=first) for each, first in zip(machines, firsts, strict=False))
        agreed = Start(**json.loads(self._store.get("start")))
        self._beats = [(b"", time.monotonic())] * self._num_nodes
        self._heartbeat.also(self._beat)
        return agreed

    def silent(self, limit_s: float) -> list[int]:
        """The other nodes without a heartbeat for longer than this, while the store did answer."""
        if self._heartbeat.silence_s() > limit_s:
            return []
        now = self._heartbeat.answered_at
        return [number for number, (_, at) in enumerate(self._beats) if number != self.number and now - at > limit_s]

    def done(self, stopped_with: int | None) -> None:
        """Announce that this node's processes have ended successfully, or with this status because they were asked to stop."""
        self._store.set(f"done/{self.number}", str(stopped_with or 0))

    def end(self) -> int:
        """Announce the end of the round; returns ``Report.order``."""
        self.has_ended = True
        return self._store.add("ended", 1)

    def report(self, report: Report) -> None:
        """Tell the others how the round has ended on this node."""
        self._store.set(f"report/{self.number}", report.to_json())

    def reports(self, wait: Callable[[float], None]) -> Mapping[int, Report]:
        """The reports of all nodes, by number; waits for them, except for silent nodes."""
        by_node: dict[int, Report] = {}
        while True:
            for number in set(range(self._num_nodes)) - by_node.keys():
                if self._store.check([f"report/{number}"]):
                    by_node[number] = Report.from_json(self._store.get(f"report/{number}").decode())
            if set(range(self._num_nodes)) - by_node.keys() <= set(self.silent(_GONE_S)):
                return by_node
            if self._heartbeat.error is not None:
                raise self._heartbeat.error
            wait(0.05)

    def close(self) -> None:
        """End the heartbeats of this round."""
        self._heartbeat.also(None)

    def _beat(self) -> None:
        names = range(self._num_nodes)
        self._count += 1
        if self._count % _BEATS_PER_MESSAGE == 0:
            self._send()
        self._client.set(f"beat/{self.number}", f"{self._count} {self._num_posted}")
        self._note_beats(self._client.multi_get([f"beat/{number}" for number in names]))
        done = [value for value in self._client.multi_get([f"done/{number}" for number in names]) if value]
        self.has_stopped = any(value != b"0" for value in done)
        self.num_done = len(done)
        self.has_ended = self.has_ended or self._client.check(["ended"])
        self.num_waiting = self._look()
        self._receive()

    def _send(self) -> None:
        if self.exchange.outgoing != self._posted:
            self._posted = self.exchange.outgoing
            self._num_posted += 1
            self._client.set(f"message/{self.number}", self._posted)

    def _receive(self) -> None:
        """Read the new messages, according to the numbers in the heartbeats: with many nodes, reading all takes long."""
        numbers = {node: self._beats[node][0].partition(b" ")[2] for node in self.exchange.peers}
        new = {node: number for node, number in numbers.items() if number and number != self._received.get(node, b"0")}
        if new:
            messages = self._client.multi_get([f"message/{node}" for node in new])
            self.exchange.receive(dict(zip(new, messages, strict=True)))
            self._received.update(new)

    def _note_beats(self, beats: Sequence[bytes]) -> None:
        now, gap_s = time.monotonic(), self._heartbeat.silence_s()
        for number, (beat, (before, at)) in enumerate(zip(beats, self._beats, strict=True)):
            # While the store did not answer, no heartbeat could be seen: that time does not count.
            self._beats[number] = (beat, now) if beat != before else (before, at + max(0.0, gap_s - 2 * BEAT_S))
