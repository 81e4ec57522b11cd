"""The rendezvous of nodes that may come and go: torchelastic's dynamic rendezvous.

Added to it: nodes that wait report for whom; the first rendezvous waits for the maximum number of
nodes, later ones do not; all times are by one clock.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict

from torch.distributed import DistError, DistStoreError, Store  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from lockstep._base.errors import LaunchError
from lockstep._base.stopping import say
from lockstep._launch.elastic.connection import OTHERS_S, Connection
from lockstep._launch.elastic.heartbeat import seconds_ahead
from lockstep._launch.elastic.places import Machine, Place, Start, answer_key, machine_key, place_all
from lockstep._launch.elastic.signed import ForgedError
from lockstep._launch.elastic.state import StateByOneClock
from lockstep._launch.elastic.waiter import StoppedError, Waiter
from lockstep._launch.nodes import GATHER_S

_QUICK = {"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 5}
"""Settings of torchelastic, in seconds, with whose defaults a run waits for three quarters of a
minute when a machine is lost: the wait for further machines once there are enough; the interval of
keep-alives; and how many keep-alives in a row a lost machine has missed."""


class DynamicRendezvous:
    """The rendezvous of between ``Nodes.least`` and ``Nodes.most`` nodes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        nodes = connection.nodes
        self._is_first = True
        self._waiter: Waiter | None = None
        self._is_spare = False  # all places were taken when the state was last read
        # torchelastic truncates its timeouts to whole seconds, and refuses 0.
        self._join_s = max(1, int(connection.timeout_s))
        parameters = RendezvousParameters(
            "c10d",
            f"{nodes.host}:{nodes.port}",
            nodes.run_id,
            nodes.least,
            nodes.most,
            connection.endpoint.local_address,
            join_timeout=self._join_s,
            **_QUICK,
        )
        try:
            stored = C10dRendezvousBackend(connection.store, nodes.run_id)
        except RendezvousConnectionError as error:
            raise _cause(error) from error
        backend = StateByOneClock(stored, seconds_ahead(connection), self._tell)
        # Otherwise torchelastic has the first node open a store on all interfaces, and announce it
        # only once: a node that outlives the first would not find it.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self._inner = create_handler(connection.store, backend, parameters)

    def meet(self, machine: Machine, start: Callable[[], Start]) -> Place:
        """Meets all nodes that are there. It waits until they are enough, with messages. The first
        one calls ``start`` then.

        A node that is lost or stopped at that moment cannot report it: the others time out waiting
        for its first message.

        Raises:
            LaunchError: too few nodes arrived within the timeout, or the run is finished.
            StoppedError: this launcher was stopped.
        """
        while True:
            met = self._next()
            try:
                return self._take_place(met, machine, start)
            except DistStoreError as error:  # a timeout, reported by the store, which is not lost
                connection = self._connection
                whom = f"a node that had joined {connection.nodes.endpoint} did not start with the others within"
                why = f"{whom} {connection.answer_s:g} s (it was lost or stopped)"
                if not connection.nodes.is_elastic:
                    raise LaunchError(f"{why}. Repeat the command on all nodes", code="node-lost-at-start") from error
                say(f"{why}. The other nodes join a new rendezvous")

    def _take_place(self, met: RendezvousInfo, machine: Machine, start: Callable[[], Start]) -> Place:
        connection = self._connection
        if met.rank == 0:  # it counts the starts, for all
            met.store.set("start", str(connection.run_store.add("starts", 1) - 1))
        count = int(met.store.get("start"))
        store = connection.round_store(count)
        store.set(machine_key(met.rank), json.dumps(asdict(machine)))
        if met.rank == 0:
            place_all(store, met.world_size, count, start())
        return Place(**json.loads(store.get(answer_key(met.rank))))

    def _next(self) -> RendezvousInfo:
        """Joins torchelastic's next rendezvous."""
        nodes = self._connection.nodes
        remedy = (
            f"Were at least {nodes.least} nodes started, with the same --rdzv-endpoint and --rdzv-id? (To wait longer: "
            "--timeout.)"
        )
        try:
            if self._is_first:
                self._gather(self._connection.waiter(remedy))
            self._is_first = False
            self._begin_turn()  # a new timeout: enough nodes are here
            return self._inner.next_rendezvous()
        except RendezvousClosedError as error:
            raise LaunchError(
                f"the run {nodes.run_id!r} at {nodes.endpoint} is finished and accepts no more nodes. Wait "
                "until its launchers have exited, or pass another --rdzv-id",
                code="run-has-ended",
            ) from error
        except RendezvousTimeoutError as error:
            assert self._waiter is not None
            raise self._waiter.timed_out() from error
        except RendezvousConnectionError as error:
            raise _cause(error) from error
        finally:
            self._waiter = None

    def look(self) -> int:
        """Number of nodes that wait to join.

        Raises:
            ForgedError: a program without the secret writes into the store.
            DistError: it does not answer any more.
        """
        try:
            return self._inner.num_nodes_waiting()
        except RendezvousConnectionError as error:
            raise _cause(error) from error

    def shutdown(self) -> None:
        """Ends the rendezvous: no further node can join."""
        self._inner.shutdown()

    def _begin_turn(self) -> None:
        """Begins a wait, as torchelastic does."""
        nodes = self._connection.nodes
        remedy = (
            f"At least {nodes.least} nodes must join, with the same --rdzv-endpoint and --rdzv-id, and nodes that have "
            "joined must end their processes before the next rendezvous. (To wait longer: --timeout.)"
        )
        self._waiter = self._connection.waiter(remedy, self._join_s)

    def _gather(self, waiter: Waiter) -> None:
        """Before the first rendezvous: wait a while for the maximum number of nodes, then for the
        minimum."""
        store = self._connection.run_store
        num_here = store.add("arrived", 1)
        try:
            self._await_enough(store, num_here, waiter)
        except (StoppedError, LaunchError):
            # Taken back, or the others would count this node among the ones that are here.
            with contextlib.suppress(DistError):
                store.add("arrived", -1)
            raise

    def _await_enough(self, store: Store, num_here: int, waiter: Waiter) -> None:
        nodes = self._connection.nodes
        while not store.check(["begun"]):
            if num_here >= nodes.most or (
                num_here >= nodes.least and waiter.waited_s > min(GATHER_S, self._connection.timeout_s)
            ):
                store.set("begun", "1")
                break
            waiter.pause(f"more nodes: {num_here} of {nodes.count} {_are(num_here)} here")
            num_here = store.add("arrived", 0)

    def _tell(self, here: list[str]) -> None:
        """Called with the participants whenever torchelastic reads the state."""
        if self._waiter is None:
            return
        names = f" ({', '.join(here)})" if here else ""
        nodes = self._connection.nodes
        told = f"{len(here)} of {nodes.count} {_are(len(here))} here{names}"
        if self._is_spare and len(here) < nodes.most:
            self._begin_turn()
        self._is_spare = len(here) >= nodes.most
        if len(here) < nodes.least:
            self._waiter.tell(f"more nodes: {told}")
        elif self._waiter.waited_s < OTHERS_S:  # torchelastic's last call
            # No message for so short a wait; the call only raises if this launcher was stopped.
            self._connection.stop.sleep(0)
        else:  # all places are taken until a node is lost; or the others must end their processes first
            self._waiter.tell(f"its turn: {told}", ends=not self._is_spare)


def _cause(error: RendezvousConnectionError) -> Exception:
    """The cause of torchelastic's error: a store that does not answer, or into which a program
    without the secret writes."""
    return error.__cause__ if isinstance(error.__cause__, ForgedError) else DistError(str(error.__cause__ or error))


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
