"""The rendezvous of numbered nodes: all must join; those that wait report for whom."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from torch.distributed import DistError, Store  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from lockstep.base.errors import ConfigError, LaunchError
from lockstep.launch.elastic.connection import Connection
from lockstep.launch.elastic.waiter import StoppedError
from lockstep.launch.processes import state_of
from lockstep.launch.supervise import SAVING_GRACE_S
from lockstep.world.machine.identity import shared_by

_SHOWN = 10
"""Missing nodes that a message names."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A launcher's claim to be a certain node."""

    pid: int
    host: str
    pid_namespace: str
    """Identifies the boot and PID namespace in which ``pid`` is valid; empty: unknown."""
    token: str
    """Unique."""

    @staticmethod
    def of_this_process() -> Claim:
        """The claim of this process."""
        return Claim(pid=os.getpid(), host=socket.gethostname(), pid_namespace=shared_by("pid"), token=uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def has_ended(self, here: Claim) -> bool:
        """Whether the launcher is known to have ended. ``here``: the claim of this process."""
        is_here = (self.host, self.pid_namespace) == (here.host, here.pid_namespace) and self.pid_namespace != ""
        return is_here and state_of(self.pid) == "dead"


class StaticRendezvous:
    """The rendezvous of numbered nodes: of all of them, every time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        nodes = connection.nodes
        assert nodes.node_rank is not None
        self._rank = nodes.node_rank
        self._number = -1

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next rendezvous. Every node must; it waits for them, with messages.

        Raises:
            ConfigError: another launcher has this node's number.
            LaunchError: a node did not arrive within the timeout.
            StoppedError: this launcher was stopped.
        """
        store = self._connection.run_store
        self._number += 1
        self._arrive(store)
        try:
            self._gather(store)
        except (StoppedError, LaunchError):
            with contextlib.suppress(DistError):
                store.delete_key(self._key(self._rank))  # so that it can join again
            raise
        store.set(f"off/{self._number}/{self._rank}", "")
        nodes = self._connection.nodes
        prefixed = self._connection.store.under(f"{self._connection.prefix}/rendezvous-{self._number}")
        return RendezvousInfo(prefixed, self._rank, nodes.most, RendezvousStoreInfo(nodes.host, nodes.port))

    def look(self) -> int:
        """Number of nodes that wait to join: always 0."""
        return 0

    def shutdown(self) -> None:
        """End the rendezvous. (Nodes that come later find no store.)"""

    def end_round(self) -> None:
        """Have launchers that are started from now on join the next rendezvous."""
        store = self._connection.run_store
        if store.add("rendezvous", 0) <= self._number and store.add(f"over/{self._number}", 1) == 1:
            store.add("rendezvous", 1)

    def _arrive(self, store: Store) -> None:
        me = Claim.of_this_process()
        expected, mine = "", json.dumps(asdict(me))
        # If a node comes back at once, the others have yet to notice that it was lost, and to end their processes.
        patience_s = self._connection.lost_s + SAVING_GRACE_S
        waiter = self._connection.waiter(
            "End the launchers of the other nodes, and start all again.", patience_s, hints=False
        )
        while True:
            # A launcher that was started again joins the rendezvous that the others have reached by now.
            self._number = max(self._number, int(store.add("rendezvous", 0)))
            holder = store.compare_set(self._key(self._rank), expected, mine).decode()
            if holder == mine:
                return
            first = Claim(**json.loads(holder))
            if not first.has_ended(me):
                raise ConfigError(
                    f"--node-rank {self._rank} is taken, by {first}: give every node a number of its own, from 0 to "
                    f"{self._connection.nodes.most - 1}. (If that one belongs to another run, give each run a port of its "
                    "own. If it was this node, and was lost, the others have not noticed yet: that takes them "
                    f"{self._connection.timeout_s:g} s, see --timeout.)"
                )
            if store.check([f"off/{self._number}/{self._rank}"]):  # the others may have started with it
                expected = ""
                waiter.pause(f"the others to notice that {first}, which was this node, has ended")
            else:  # it was still waiting: take its place, unless it has withdrawn
                expected = "" if expected == holder else holder

    def _gather(self, store: Store) -> None:
        waiter = self._connection.waiter(
            "Was every node started, with the same --master-addr and --master-port? Look for one that has "
            f"failed.{self._connection.nodes.caution} (To wait longer: --rdzv-conf join_timeout=N, or --timeout.)",
            self._connection.nodes.conf.get("join_timeout"),
        )
        all_here, missing = f"all/{self._number}", f"missing/{self._number}"
        # Node 0 looks for the others, and tells them: if each did, a thousand nodes would ask a million times.
        if self._rank == 0:
            for absent in self._absent(store):
                store.set(missing, absent)
                waiter.pause(absent)
            store.set(all_here, "")
        absent = "node 0"
        while not store.check([all_here]):
            if waiter.is_due and store.check([missing]):
                absent = store.get(missing).decode()
            waiter.pause(absent)

    def _absent(self, store: Store) -> Iterator[str]:
        """Which nodes have not arrived, for the user, again and again until all have."""
        nodes = range(self._connection.nodes.most)
        absent: Sequence[int] = nodes
        while not store.check([self._key(node) for node in nodes]):  # of all: one that had arrived may have withdrawn
            absent = [node for node in absent or nodes if not store.check([self._key(node)])]
            if absent:
                more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
                yield f"node{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent[:_SHOWN]))}{more} of {len(nodes)}"

    def _key(self, node: int) -> str:
        return f"here/{self._number}/{node}"
