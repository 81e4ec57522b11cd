"""The rendezvous of numbered nodes: all must join; those that wait report for whom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from torch.distributed import DistError

from lockstep._base.errors import ConfigError, LaunchError
from lockstep._launch.elastic.connection import Connection
from lockstep._launch.elastic.places import Machine, Place, Start, answer_key, machine_key, place_all, read_machine
from lockstep._launch.elastic.signed import SignedStore
from lockstep._launch.elastic.waiter import StoppedError, Waiter

_SHOWN = 10
"""Missing nodes that a message names."""
_LOOK_S = 5.0
"""How often the first node looks who is missing."""


class StaticRendezvous:
    """The rendezvous of numbered nodes: of all of them, every time.

    A node announces its machine under its number, and looks for its place, the less often the more
    nodes there are. The first one tells all their places once it has all machines, and until then
    says who is missing.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        nodes = connection.nodes
        assert nodes.node_rank is not None
        self._rank = nodes.node_rank
        self._numbers = range(nodes.most)
        self._count = -1  # of the rendezvous, from 0

    def meet(self, machine: Machine, start: Callable[[], Start]) -> Place:
        """Meet the others. Every node must; it waits for them, with messages. The first one calls
        ``start`` then.

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
                self._gather(store)
                place_all(store, len(self._numbers), self._count, start())
            waiter = self._waiter()
            while not store.check([answer_key(self._rank)]):
                waiter.pause("the other nodes")
            return Place(**json.loads(store.get(answer_key(self._rank))))
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

    def _gather(self, store: SignedStore) -> None:
        """Wait for all."""
        waiter, missing, look_at_s = self._waiter(), "the other nodes", 0.5
        while not store.check([machine_key(number) for number in self._numbers]):
            if waiter.waited_s >= look_at_s:
                missing = _named(_absent(store, self._numbers), len(self._numbers))
                look_at_s = waiter.waited_s + _LOOK_S
            waiter.pause(missing)

    def _waiter(self) -> Waiter:
        return self._connection.waiter(
            "Was every node started, with the same --master-addr and --master-port? Look for one that has failed. (To wait "
            "longer: --timeout.)"
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
