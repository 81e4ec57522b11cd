"""From one rendezvous of the nodes to the next: what their launchers exchange during that time, through their store.

Each launcher sends a heartbeat several times a second, and checks those of the others. A heartbeat is a number that changes, so
the machines' clocks do not matter. A launcher that sees a reason to end the round (its processes failed, another node is
silent, one wants to join, somebody stopped it) announces it; then all end their processes, and each reports how its own ended.
The names of all these entries belong to this round alone.
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

_BEATS_A_WORD = 4
"""At most one word of ``Exchange`` is said in so many heartbeats: about as often as a launcher looks."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node that takes part in a round."""

    host: str
    address: str
    num_ranks: int
    first_rank: int = 0
    """Its processes have the ranks from here on: known when all machines are."""
    keeps_store: bool = False
    """Whether the launchers' store ends with this node's."""

    @property
    def ranks(self) -> str:
        """For the user."""
        last = self.first_rank + self.num_ranks - 1
        return f"rank {last}" if self.num_ranks == 1 else f"ranks {self.first_rank} to {last}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a node's part of a round has ended."""

    why: str
    """``failed``; ``stopped`` by somebody; ``saved``: the run was asked to stop, and all its processes end by themselves;
    ``join``: a new node has come; ``lost``: another one is silent; ``followed``: because another node said so first."""
    order: int
    """The first node to see an end has 1, the next 2: by the store's count, for clocks differ."""
    failures: tuple[Failure, ...] = ()
    """Of its processes, the first first."""
    signal: int = 0
    """That somebody stopped it by: this node leaves."""
    stopped_with: int = 0
    """The status with which the run has saved itself, or could not (``lockstep.stopping``)."""

    def to_json(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Report:
        """What ``to_json`` made."""
        fields: dict[str, Any] = json.loads(text)
        return Report(**{**fields, "failures": tuple(Failure(**failure) for failure in fields["failures"])})


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the first node says at the beginning of a round."""

    used: int
    """How many starts of the processes before this one were for failures."""
    master_port: int
    """A free port of its machine."""


class Round:
    """One round, seen from one node. Close it.

    Args:
        store: of the launchers; asked by the thread that makes this.
        heartbeat: asks it, too.
        prefix: of the names of this round alone.
        number: of this node.
        num_nodes: that take part.
        look: how many nodes wait to take part.
    """

    def __init__(
        self, store: SignedStore, heartbeat: Heartbeat, prefix: str, number: int, num_nodes: int, look: Callable[[], int]
    ) -> None:
        self.number = number
        self.exchange = Exchange(number, num_nodes)
        """For what the launchers tell each other of their workers."""
        self.machines: tuple[Machine, ...] = ()
        self.has_ended = False
        """Whether some node has said so."""
        self.num_waiting = 0
        """Of nodes that want to take part."""
        self.num_done = 0
        """Of nodes all of whose processes have ended by themselves, and well."""
        self.has_stopped = False
        """Whether some of them did because the run was asked to stop."""
        self._store = store.under(prefix)
        self._client = heartbeat.store.under(prefix)
        self._heartbeat = heartbeat
        self._num_nodes = num_nodes
        self._look = look
        self._count = 0
        self._said, self._num_said = "", 0  # this node's last word, and how many it has said
        self._heard: dict[int, bytes] = {}  # by node: the number of the last word that was read
        self._beats: list[tuple[bytes, float]] = []  # of each node: the last, and when it was new

    def begin(self, machine: Machine, start: Start | None) -> Start:
        """Tell the others who this is, and hear who they are. Every node must call it; ``start`` is for the first to say."""
        self._store.set(f"beat/{self.number}", "")
        self._store.set(f"done/{self.number}", "")
        self._store.set(f"word/{self.number}", "")
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
        """The other nodes that have said nothing for longer than this, while the store did answer."""
        if self._heartbeat.silence_s() > limit_s:
            return []
        now = self._heartbeat.answered_at
        return [number for number, (_, at) in enumerate(self._beats) if number != self.number and now - at > limit_s]

    def done(self, stopped_with: int | None) -> None:
        """All of this node's processes have come to their end, or have ended with this status because they were asked to."""
        self._store.set(f"done/{self.number}", str(stopped_with or 0))

    def end(self) -> int:
        """Say that the round is at its end; returns the order in which this node saw it."""
        self.has_ended = True
        return self._store.add("ended", 1)

    def report(self, report: Report) -> None:
        """Tell the others how this node's part has ended."""
        self._store.set(f"report/{self.number}", report.to_json())

    def reports(self, wait: Callable[[float], None]) -> Mapping[int, Report]:
        """What all nodes report that are still there, by number. Waits for those that are."""
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
        """Say nothing more."""
        self._heartbeat.also(None)

    def _beat(self) -> None:
        names = range(self._num_nodes)
        self._count += 1
        if self._count % _BEATS_A_WORD == 0:
            self._say()
        self._client.set(f"beat/{self.number}", f"{self._count} {self._num_said}")
        self._note_beats(self._client.multi_get([f"beat/{number}" for number in names]))
        done = [value for value in self._client.multi_get([f"done/{number}" for number in names]) if value]
        self.has_stopped = any(value != b"0" for value in done)
        self.num_done = len(done)
        self.has_ended = self.has_ended or self._client.check(["ended"])
        self.num_waiting = self._look()
        self._hear()

    def _say(self) -> None:
        if self.exchange.to_carry != self._said:
            self._said = self.exchange.to_carry
            self._num_said += 1
            self._client.set(f"word/{self.number}", self._said)

    def _hear(self) -> None:
        """Read the words that are new, by the numbers in the heartbeats: with many nodes, to read all takes long."""
        numbers = {node: self._beats[node][0].partition(b" ")[2] for node in self.exchange.hears}
        new = {node: number for node, number in numbers.items() if number and number != self._heard.get(node, b"0")}
        if new:
            words = self._client.multi_get([f"word/{node}" for node in new])
            self.exchange.hear(dict(zip(new, words, strict=True)))
            self._heard.update(new)

    def _note_beats(self, beats: Sequence[bytes]) -> None:
        now, gap_s = time.monotonic(), self._heartbeat.silence_s()
        for number, (beat, (before, at)) in enumerate(zip(beats, self._beats, strict=True)):
            # While the store did not answer, this node could hear nobody: that time is not theirs.
            self._beats[number] = (beat, now) if beat != before else (before, at + max(0.0, gap_s - 2 * BEAT_S))
