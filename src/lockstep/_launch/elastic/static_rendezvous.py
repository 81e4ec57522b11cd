"""The rendezvous of numbered nodes: all must join, and nodes that wait report for whom."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from torch.distributed import DistError

from lockstep._base.errors import ConfigError, LaunchError
from lockstep._base.stopping import say
from lockstep._launch.elastic.connection import Connection
from lockstep._launch.elastic.places import (
    Machine,
    Place,
    Start,
    answer_key,
    machine_key,
    place_all,
    read_machine,
    read_machines,
)
from lockstep._launch.elastic.signed import SignedStore
from lockstep._launch.elastic.waiter import StoppedError, Waiter

_SHOWN = 10
"""The largest number of missing nodes that a message names."""
_LOOK_S = 5.0
"""Seconds between two looks of the first node for nodes that are missing."""
_SIGN_S = 2.0
"""Seconds between two signs of life of a node that waits for its place."""
_SIGNS_PER_S = 500.0
"""The largest number of signs of life in a second, of all nodes."""
_LOST_S = 15.0
"""Seconds without a sign of life after which another launcher may take the number of a node that
has not got its place. Longer than the pauses of a launcher on a busy machine."""
_LOST_IN_ROUND_S = 60.0
"""The same for a node that has its place, so that the round must be ended. Longer, since a paused
machine continues its training, which must not end because of a second launcher that was started by
mistake."""
_LOST_SIGNS = 3
"""Signs of life that a launcher may miss before it counts as lost."""


class StaticRendezvous:
    """The rendezvous of numbered nodes: of all of them, every time.

    A node announces its machine under its number, and looks for its place, the less often the more
    nodes there are. Node 0 announces all places once it has all machines, and until then reports
    who is missing.

    A number that is taken is waited for, since a platform may replace a machine before its old
    launcher has exited (``_Holder`` is that launcher, as seen from here)::

        the launcher that has the number        the one that waits for it
        has not got its place, and is silent    takes the number over, and nobody notices
        has got its place, and is silent        announces the end of the round, so that all nodes
                                                can be started again, and ends
        is alive                                waits, up to the timeout: it may be saving its run
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        nodes = connection.nodes
        assert nodes.node_rank is not None
        self._rank = nodes.node_rank
        self._numbers = range(nodes.most)
        self._count = -1  # of the rendezvous, from 0
        self._sign_every_s = max(_SIGN_S, nodes.most / _SIGNS_PER_S)
        self._num_signs = 0
        self._sign_at = 0.0

    def meet(self, machine: Machine, start: Callable[[], Start]) -> Place:
        """Meets the others. Every node must; it waits for them, with messages. Node 0 calls
        ``start`` then.

        Raises:
            ConfigError: another launcher has this node's number, and is alive.
            LaunchError: a node did not arrive within the timeout; or the launcher that had this
                node's number was lost in the round that has begun.
            StoppedError: this launcher was stopped.
        """
        self._count += 1
        mine = json.dumps(asdict(machine))
        store = self._arrive(mine)
        self._sign_at = time.monotonic() + self._sign_every_s
        try:
            if self._rank == 0:
                self._gather(store)
                place_all(store, len(self._numbers), self._count, start())
            waiter = self._waiter()
            while not store.check([answer_key(self._rank)]):
                self._sign(store)
                waiter.pause("the other nodes")
            place = Place(**json.loads(store.get(answer_key(self._rank))))
        except (StoppedError, LaunchError):
            with contextlib.suppress(DistError):
                if store.get(machine_key(self._rank)).decode() == mine:
                    store.delete_key(machine_key(self._rank))  # so that it can join again
            raise
        if place.token == machine.token:
            return place
        # Node 0 has read this node's machine before the number went to another launcher, or after.
        now = store.get(machine_key(self._rank))
        if now.decode() == mine:
            raise self._end_round_of(read_machines(store)[self._rank], store)
        raise self._taken(read_machine(now), "now")

    def look(self) -> int:
        """Number of nodes that wait to join: always 0."""
        return 0

    def shutdown(self) -> None:
        """Ends the rendezvous. (Nodes that come later find no store.)"""

    def _arrive(self, mine: str) -> SignedStore:
        """Announces this node in the newest round, once its number is free. Returns the round's
        store."""
        waiter = self._connection.waiter("")
        holder: _Holder | None = None
        while True:
            store = self._connection.round_store(self._count)
            key = machine_key(self._rank)
            found = store.compare_set(key, "", mine).decode()
            if found == mine:
                return store
            # Another announcement is of another launcher, as when a machine is replaced twice while
            # this one waits: its silence counts from now.
            if holder is None or (holder.announced, holder.count) != (found, self._count):
                holder = _Holder(found, self._count, self._rank)
            silence_s = holder.silence_s(store)
            is_lost = silence_s > self._limit_s(_LOST_S)
            following = self._connection.round_store(self._count + 1)
            if following.check([machine_key(0)]) and (is_lost or following.check([key])):
                # the others meet again, and a living holder has come before this one
                self._count += 1
                continue
            if store.check([answer_key(self._rank)]):
                if silence_s > self._limit_s(_LOST_IN_ROUND_S):
                    raise self._end_round_of(holder.machine, store)
            elif is_lost:
                # Two launchers may wait for the number. The one that still finds the old entry gets
                # it.
                if store.compare_set(key, found, mine).decode() == mine:
                    say(f"took over --node-rank {self._rank} from {_called(holder.machine)}, which was lost")
                    return store
                continue
            if waiter.remaining_s == 0:
                raise self._taken(holder.machine, f"after {waiter.waited_s:.0f} s still")
            waiter.pause(
                f"--node-rank {self._rank}, which {_called(holder.machine)} has. (If that is another node of this run, pass "
                "each a different number)"
            )

    def _limit_s(self, most_s: float) -> float:
        """Seconds of silence after which the launcher that has this node's number counts as lost:
        ``most_s``, or less with a short timeout."""
        # Half of the timeout at most: this launcher gives up at the timeout, and must have taken
        # the number over before. With many nodes, signs are rarer: every 10 s of 5,000, so 30 s.
        return max(min(most_s, self._connection.timeout_s / 2), _LOST_SIGNS * self._sign_every_s)

    def _end_round_of(self, machine: Machine, store: SignedStore) -> LaunchError:
        """Announces the end of a round that began with a launcher that is lost: its nodes would
        wait for it until the timeout."""
        store.compare_set("ended", "", str(self._rank))
        return LaunchError(
            f"{_called(machine)} had --node-rank {self._rank}, and was lost: the processes of all nodes are ended. Start the "
            "same command again on all nodes to resume from the newest checkpoint",
            code="predecessor-lost",
        )

    def _taken(self, machine: Machine, when: str) -> ConfigError:
        return ConfigError(
            f"--node-rank {self._rank} is {when} taken, by {_called(machine)}. Pass each node a different number, from 0 to "
            f"{self._numbers[-1]}, and each run a separate port",
            code="node-rank-taken",
        )

    def _sign(self, store: SignedStore) -> None:
        """Gives a sign of life, if it is due, to a launcher that may wait for this node's
        number."""
        if self._rank and time.monotonic() >= self._sign_at:
            self._num_signs += 1
            store.set(_sign_key(self._rank), str(self._num_signs))
            self._sign_at = time.monotonic() + self._sign_every_s

    def _gather(self, store: SignedStore) -> None:
        """Waits for the machines of all nodes."""
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


class _Holder:
    """The launcher that has a node's number in a round, as another launcher sees it.

    Args:
        announced: its machine, as JSON.
        count: the number of earlier rounds.
        rank: the node's number.
    """

    def __init__(self, announced: str, count: int, rank: int) -> None:
        self.announced = announced
        self.count = count
        self.machine = read_machine(announced.encode())
        # A launcher changes the first before it has its place, and the second after (`Round`).
        self._keys = (_sign_key(rank), f"beat/{rank}", answer_key(rank))
        self._signs: list[bytes] = []
        self._silence_s = 0.0
        self._looked_at = time.monotonic()

    def silence_s(self, store: SignedStore) -> float:
        """Seconds for which it has given no sign of life, as far as this launcher has looked.

        Each look counts for a short time only: while the store does not answer (its keeper is
        paused), the other launcher cannot give signs of life either."""
        signs = [store.get(key) if store.check([key]) else b"" for key in self._keys]
        now = time.monotonic()
        self._silence_s = self._silence_s + min(now - self._looked_at, _SIGN_S) if signs == self._signs else 0.0
        self._signs, self._looked_at = signs, now
        return self._silence_s


def _sign_key(rank: int) -> str:
    return f"sign/{rank}"


def _called(machine: Machine) -> str:
    """The launcher of a machine, for the user."""
    return f"process {machine.pid} on {machine.host}"


def _named(absent: Sequence[int], num_nodes: int) -> str:
    """Nodes that are missing, for the user."""
    more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    return f"node{'s' if len(absent) != 1 else ''} {', '.join(map(str, absent[:_SHOWN]))}{more} of {num_nodes}"


def _absent(store: SignedStore, numbers: Sequence[int]) -> list[int]:
    """The nodes, of these numbers, that have not arrived."""
    if store.check([machine_key(number) for number in numbers]):
        return []
    if len(numbers) == 1:
        return list(numbers)
    # A request asks for many names, and is answered by whether all exist. So a few missing nodes
    # are found by halving: one of 1,024 in about 20 requests, and not in 1,024.
    half = len(numbers) // 2
    return _absent(store, numbers[:half]) + _absent(store, numbers[half:])
