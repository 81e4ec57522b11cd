"""The rendezvous of numbered nodes: all must join; those that wait report for whom."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from torch.distributed import DistError, DistStoreError

from lockstep.base.errors import ConfigError, LaunchError
from lockstep.launch.elastic.connection import Connection
from lockstep.launch.elastic.places import Machine, Place, Start, answer_key, machine_key, place_all, read_machine
from lockstep.launch.elastic.signed import SignedStore
from lockstep.launch.elastic.waiter import StoppedError, Waiter

_SHOWN = 10
"""Missing nodes that a message names."""
_LOOK_S = 1.0
"""Seconds after which the first node looks who is missing, and tells the others."""
_TOLD_PER_S = 400.0
"""How many nodes a second it tells, at most: each then asks again."""


class StaticRendezvous:
    """The rendezvous of numbered nodes: of all of them, every time.

    A node announces its machine under its number, and asks for its place; the store keeps the request until there is an answer.
    The first one tells all their places once it has all machines, and until then, now and then, who is missing. (A request that
    times out makes PyTorch's client print warnings, and a thousand nodes that look again and again are too many.)
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        nodes = connection.nodes
        assert nodes.node_rank is not None
        self._rank = nodes.node_rank
        self._numbers = range(nodes.most)
        self._count = -1  # of the rendezvous, from 0

    def meet(self, machine: Machine, start: Callable[[], Start]) -> Place:
        """Meet the others. Every node must; it waits for them, with messages. The first one calls ``start`` then.

        Raises:
            ConfigError: another launcher has this node's number.
            LaunchError: a node did not arrive within the timeout.
            StoppedError: this launcher was stopped.
        """
        self._count += 1
        store = self._connection.round_store(self._count)
        self._arrive(store, machine)
        try:
            if self._rank == 0:
                num_told = self._gather(store)
                place_all(store, len(self._numbers), self._count, start(), num_told)
                return Place(**json.loads(store.get(answer_key(0, num_told[0]))))
            return self._await_place(store)
        except (StoppedError, LaunchError):
            with contextlib.suppress(DistError):
                store.delete_key(machine_key(self._rank))  # so that it can join again
            raise

    def look(self) -> int:
        """Number of nodes that wait to join: always 0."""
        return 0

    def shutdown(self) -> None:
        """End the rendezvous. (Nodes that come later find no store.)"""

    def _arrive(self, store: SignedStore, me: Machine) -> None:
        mine = json.dumps(asdict(me))
        holder = store.compare_set(machine_key(self._rank), "", mine)
        if holder.decode() != mine:
            first = read_machine(holder)
            raise ConfigError(
                f"--node-rank {self._rank} is taken, by process {first.pid} on {first.host}: give every node a number of its "
                f"own, from 0 to {self._numbers[-1]}. (If that one belongs to another run, give each run a port of its own. If "
                "it was this node, and was lost, end the launchers of all nodes, and start all again.)"
            )

    def _gather(self, store: SignedStore) -> Mapping[int, int]:
        """Wait for all, and tell those that wait as well for whom, how often each."""
        waiter, missing = self._waiter(), "the other nodes"
        num_told: Counter[int] = Counter()
        look_s = max(_LOOK_S, len(self._numbers) / _TOLD_PER_S)
        look_at_s = look_s
        while not store.check([machine_key(number) for number in self._numbers]):
            if waiter.waited_s >= look_at_s:
                absent = _absent(store, self._numbers)
                missing = _named(absent, len(self._numbers)) if absent else missing
                there = set(self._numbers) - set(absent)
                store.multi_set([answer_key(number, num_told[number]) for number in there], [missing] * len(there))
                num_told.update(there)
                look_at_s = waiter.waited_s + look_s
            waiter.pause(missing)
        return num_told

    def _await_place(self, store: SignedStore) -> Place:
        waiter, asked = self._waiter(), 0
        while True:
            missing = "node 0"
            with contextlib.suppress(DistStoreError):  # it was silent for long
                answer = store.get(answer_key(self._rank, asked))
                if answer.startswith(b"{"):
                    return Place(**json.loads(answer))
                missing, asked = answer.decode(), asked + 1
            waiter.tell(missing)
            if waiter.remaining_s == 0:
                raise waiter.timed_out()

    def _waiter(self) -> Waiter:
        return self._connection.waiter(
            "Was every node started, with the same --master-addr and --master-port? Look for one that has "
            f"failed.{self._connection.nodes.caution} (To wait longer: --timeout.)"
        )


def _named(absent: Sequence[int], num_nodes: int) -> str:
    """For the user."""
    more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    return f"node{'s' if len(absent) != 1 else ''} {', '.join(map(str, absent[:_SHOWN]))}{more} of {num_nodes}"


def _absent(store: SignedStore, numbers: Sequence[int]) -> list[int]:
    """Those of these nodes that have not arrived."""
    if store.check([machine_key(number) for number in numbers]):
        return []
    if len(numbers) == 1:
        return list(numbers)
    half = len(numbers) // 2
    return _absent(store, numbers[:half]) + _absent(store, numbers[half:])
